//! What agents do in their boxes, each call judged: where a command ran, how it ended, and whether files stay.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::time::Duration;

use sandbar_core::boxes::{Ran, Run};
use sandbar_core::error::{Code, Error};
use sandbar_core::host::Host;
use sandbar_core::name::ProjectName;

use crate::docker::Order;
use crate::engine::BOX;
use crate::stage::{CALL, CALM, Extensions, Open, Stage};

/// What was written and acknowledged: when, and in which container that was.
#[derive(Debug, Clone)]
pub(crate) struct Written {
    project: ProjectName,
    path: String,
    at: Duration,
    retained: bool,
    container: Option<String>,
}

impl Stage {
    /// Something an agent does in its box. `None` when its caller went away first.
    async fn in_box<T>(
        &self,
        host: &Host,
        agent: usize,
        takes: Duration,
        cancel: Option<Duration>,
        call: impl Future<Output = Result<T, Error>>,
    ) -> Option<Result<T, Error>> {
        let (name, from) = (&self.agents[agent], self.world.now());
        let none = Extensions::new();
        let _open = Open::request(self, agent, &none);
        let call = async {
            host.registry().call_came(name);
            let result = call.await;
            host.registry().call_ended(name);
            result
        };
        let result = match cancel {
            Some(after) => tokio::time::timeout(after, call).await.ok(),
            None => Some(call.await),
        };
        let took = self.world.now() - from;
        if took > CALL * 2 + takes || self.calm && took > CALM + takes {
            self.world.violation(format!("something of {name} in its box took {took:?}"));
        }
        if result.is_none() {
            self.world.with(|inner| inner.log(|| format!("{name} goes away")));
        }
        if let Some(Err(error)) = &result
            && error.code != Code::NotFound
        {
            self.world.log(|| format!("{name} is refused: {error}"));
            self.judge_error(host, agent, error, from);
        }
        self.look_at_counts(host);
        result
    }

    /// Runs a command, judged.
    pub(crate) async fn run(
        &self,
        host: &Host,
        agent: usize,
        takes: Duration,
        deadline: Duration,
        stubborn: bool,
        cancel: Option<Duration>,
    ) -> Option<Result<Ran, Error>> {
        let (name, from) = (&self.agents[agent], self.world.now());
        let project = host.people().work(name).map(|work| work.project);
        let tenant = project.as_ref().map_or_else(|| "nobody".to_owned(), |p| format!("{name}/{BOX}@{p}"));
        let number = self.numbers.fetch_add(1, Ordering::Relaxed);
        let order = Order { tenant, number, takes, stubborn };
        self.world.log(|| format!("{name} runs {order:?} within {deadline:?}, waits {cancel:?}"));
        let run =
            Run { service: None, argv: order.argv(), env: BTreeMap::new(), stdin: Vec::new(), folder: None, deadline };
        let longest = takes.min(deadline) + Duration::from_secs(30);
        let result = self.in_box(host, agent, longest, cancel, host.run_command(name, &run, None)).await?;
        if let (Ok(ran), Some(project)) = (&result, project) {
            self.world.log(|| format!("{name} has run {number}: {} in {}", ran.exit_code, ran.stdout));
            self.judge_run(host, agent, &project, ran, &order, deadline, from);
        }
        Some(result)
    }

    #[expect(clippy::too_many_arguments, reason = "it is what is known of a command")]
    fn judge_run(
        &self,
        host: &Host,
        agent: usize,
        project: &ProjectName,
        ran: &Ran,
        order: &Order,
        deadline: Duration,
        from: Duration,
    ) {
        let name = self.agents[agent].as_str();
        let (owner, _) = self.owner(agent, project, BOX);
        if owner.retains() {
            self.prize(agent, project, BOX);
        }
        let late = order.takes >= deadline;
        if ran.timed_out != (ran.exit_code == 124) || late && !ran.timed_out {
            self.world.violation(format!("{name} ran {order:?} within {deadline:?} and is told {ran:?}"));
        }
        let now = self.world.now();
        let upset = self.with(agent, |a| a.was_upset(from, now)) || self.with(agent, |a| a.on_lab);
        let disturbed = self.world.with(|inner| inner.was_disturbed(name, from));
        if upset || disturbed {
            return;
        }
        if ran.timed_out && !late {
            self.world.violation(format!("{name} ran {order:?} within {deadline:?}, and its time was over"));
        }
        // Whatever became of the command, the box stays.
        let id = ran.stdout.split(' ').next().unwrap_or_default();
        let live = host.registry().snapshot(&owner).live;
        if !live.is_some_and(|live| live.services.values().any(|s| s.id == id)) {
            self.world.violation(format!("{name} ran a command in {id}, which is not its box any more"));
        }
    }

    /// The container of an agent's box, as the registry knows it.
    fn box_of(&self, host: &Host, agent: usize, project: &ProjectName) -> Option<String> {
        let live = host.registry().snapshot(&self.owner(agent, project, BOX).0).live?;
        live.services.values().next().map(|s| s.id.clone())
    }

    /// Writes a file.
    pub(crate) async fn write(&self, host: &Host, agent: usize) -> Option<Result<u64, Error>> {
        let (name, from) = (&self.agents[agent], self.world.now());
        let project = host.people().work(name).map(|work| work.project)?;
        let retained = self.owner(agent, &project, BOX).0.retains();
        let number = self.numbers.fetch_add(1, Ordering::Relaxed);
        let path = format!("{name}/{BOX}@{project}-{number}");
        self.world.log(|| format!("{name} writes {path}"));
        let (takes, bytes) = (Duration::from_secs(10), path.clone().into_bytes());
        let before = self.box_of(host, agent, &project);
        let result =
            self.in_box(host, agent, takes, None, host.write_file(name, None, &path, bytes.into(), None, None)).await?;
        if result.is_ok() {
            let after = self.box_of(host, agent, &project);
            let disturbed = self.world.with(|inner| inner.was_disturbed(name.as_str(), from));
            let container = after.filter(|id| !disturbed && (before.is_none() || before.as_ref() == Some(id)));
            let written = Written { project: project.clone(), path, at: self.world.now(), retained, container };
            self.with(agent, |a| a.written.push(written));
            if retained {
                self.prize(agent, &project, BOX);
            }
        }
        Some(result)
    }

    /// Reads back what was written last.
    pub(crate) async fn read(&self, host: &Host, agent: usize) -> Option<Result<(), Error>> {
        let (name, from) = (&self.agents[agent], self.world.now());
        let project = host.people().work(name).map(|work| work.project)?;
        let written = self.with(agent, |a| a.written.iter().rev().find(|w| w.project == project).cloned())?;
        let (owner, _) = self.owner(agent, &project, BOX);
        self.world.log(|| format!("{name} reads {}", written.path));
        let before = self.box_of(host, agent, &project);
        let call = host.read_file(name, None, &written.path, 0, 1000, None);
        let result = self.in_box(host, agent, Duration::from_secs(10), None, call).await?;
        let found = match result {
            Ok(content) => content.bytes == written.path.as_bytes(),
            Err(error) if error.code == Code::NotFound => false,
            Err(error) => return Some(Err(error)),
        };
        let after = self.box_of(host, agent, &project);
        let now = self.world.now();
        let stayed = if written.retained {
            // Where it was deleted meanwhile, that was judged then.
            let born = self.world.with(|inner| inner.disk.folders.get(&owner.folder()).map(|f| f.born));
            owner.retains() && born.is_some_and(|born| born < written.at)
        } else {
            let upset = self.with(agent, |a| a.was_upset(from, now));
            !upset && !owner.retains() && written.container.is_some() && before == after && before == written.container
        };
        if stayed && !found {
            self.world.violation(format!("{name} wrote {} at {:?}, and it is not there", written.path, written.at));
        }
        if owner.retains() {
            self.prize(agent, &project, BOX);
        }
        Some(Ok(()))
    }
}
