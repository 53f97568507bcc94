//! The canonical ABI by hand: values of the contract as bytes in a guest's memory, so that an engine written in
//! WebAssembly text can answer with them. Sizes and offsets follow from the records in the WIT file.

use sandbar_core::engine::{Account, Command, Container, Descriptor, Expectation, Pairs, Recipe, Step};

/// Memory that is being filled, from `base` on.
pub(crate) struct Memory {
    pub(crate) base: usize,
    pub(crate) bytes: Vec<u8>,
}

impl Memory {
    /// Stores bytes and says where.
    pub(crate) fn put(&mut self, bytes: &[u8]) -> usize {
        while !self.bytes.len().is_multiple_of(8) {
            self.bytes.push(0);
        }
        let at = self.base + self.bytes.len();
        self.bytes.extend_from_slice(bytes);
        at
    }

    fn slice(&mut self, content: &[u8], length: usize) -> Vec<u8> {
        let at = self.put(content);
        [word(at), word(length)].concat()
    }

    fn string(&mut self, text: &str) -> Vec<u8> {
        self.slice(text.as_bytes(), text.len())
    }

    fn list<T>(&mut self, items: &[T], mut item: impl FnMut(&mut Self, &T) -> Vec<u8>) -> Vec<u8> {
        let content: Vec<u8> = items.iter().flat_map(|one| item(self, one)).collect();
        self.slice(&content, items.len())
    }

    fn strings(&mut self, items: &[String]) -> Vec<u8> {
        self.list(items, |memory, text| memory.string(text))
    }

    fn pairs(&mut self, pairs: &Pairs) -> Vec<u8> {
        self.list(pairs, |memory, (name, value)| [memory.string(name), memory.string(value)].concat())
    }

    fn optional_string(&mut self, text: Option<&String>) -> Vec<u8> {
        let text = text.map(|text| self.string(text));
        option(text, 8)
    }

    /// A descriptor, and where it is.
    pub(crate) fn descriptor(&mut self, descriptor: &Descriptor) -> usize {
        let Descriptor { name, slug, version, summary, features, settings, more } = descriptor;
        let record = [
            self.string(name),
            self.string(slug),
            self.string(version),
            self.string(summary),
            self.list(features, |memory, f| [memory.string(&f.name), memory.string(&f.summary)].concat()),
            self.list(settings, |memory, s| {
                [memory.string(&s.name), memory.string(&s.default), memory.string(&s.summary)].concat()
            }),
            self.pairs(more),
        ];
        self.put(&record.concat())
    }

    /// The answer `ok(recipe)`, and where it is.
    pub(crate) fn recipe(&mut self, recipe: &Recipe) -> usize {
        let Recipe { container, ready, deadline_ms, setup, verify, variables } = recipe;
        let answer = [
            vec![0; 8],
            self.container(container),
            self.command(ready),
            deadline_ms.to_le_bytes().to_vec(),
            self.list(setup, Self::step),
            self.list(verify, Self::step),
            self.list(variables, |memory, v| {
                [memory.string(&v.name), memory.string(&v.value), word(usize::from(v.prefixed))].concat()
            }),
        ];
        self.put(&answer.concat())
    }

    fn container(&mut self, container: &Container) -> Vec<u8> {
        let entrypoint = container.entrypoint.as_ref().map(|words| self.strings(words));
        let record = [
            self.string(&container.image),
            option(entrypoint, 8),
            self.strings(&container.command),
            self.string(&container.user),
            self.pairs(&container.env),
            self.list(&container.files, |memory, f| {
                [memory.string(&f.path), f.mode.to_le_bytes().to_vec(), memory.string(&f.content)].concat()
            }),
            // 16 bytes each, the size in the second half.
            self.list(&container.data, |memory, d| {
                [memory.string(&d.path), d.tmpfs_bytes.to_le_bytes().to_vec()].concat()
            }),
            self.optional_string(container.work_folder.as_ref()),
            container.shm_bytes.to_le_bytes().to_vec(),
            self.strings(&container.capabilities),
            container.port.map_or(vec![0; 4], |port| [vec![1, 0], port.to_le_bytes().to_vec()].concat()),
            {
                let account = container.account.as_ref().map(|account| self.account(account));
                option(account, 28)
            },
            self.pairs(&container.more),
            // To a multiple of eight, since there is a number of 64 bits in it.
            vec![0; 4],
        ];
        let record = record.concat();
        assert_eq!(record.len(), 136);
        record
    }

    fn account(&mut self, account: &Account) -> Vec<u8> {
        let Account { user, database, admin } = account;
        [self.optional_string(user.as_ref()), self.optional_string(database.as_ref()), word(usize::from(*admin))]
            .concat()
    }

    fn command(&mut self, command: &Command) -> Vec<u8> {
        let expect = match &command.expect {
            Expectation::ExitZero => vec![0; 12],
            Expectation::StdoutIs(text) => [word(1), self.string(text)].concat(),
            Expectation::StdoutHasLines(lines) => [word(2), self.strings(lines)].concat(),
        };
        [
            self.strings(&command.argv),
            self.pairs(&command.env),
            self.optional_string(command.user.as_ref()),
            expect,
            command.timeout_ms.to_le_bytes().to_vec(),
        ]
        .concat()
    }

    fn step(&mut self, step: &Step) -> Vec<u8> {
        [self.string(&step.name), self.optional_string(step.feature.as_ref()), self.command(&step.run)].concat()
    }
}

fn word(number: usize) -> Vec<u8> {
    u32::try_from(number).unwrap().to_le_bytes().to_vec()
}

/// An option whose content has `size` bytes and an alignment of four.
fn option(content: Option<Vec<u8>>, size: usize) -> Vec<u8> {
    match content {
        Some(content) => [word(1), content].concat(),
        None => vec![0; 4 + size],
    }
}
