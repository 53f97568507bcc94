//! What can be asked for.

use std::fmt;

use sandbar_core::error::listed;

/// A combination of features, for one kind of sandbox.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Wish {
    /// Sorted, without duplicates.
    pub features: Vec<String>,
    /// Whether the data outlives the container.
    pub retained: bool,
    /// Whether the account is without restrictions.
    pub superuser: bool,
}

impl Wish {
    /// None of these features, each one alone, and all together; throwaway, with an ordinary account.
    pub fn each(features: &[String]) -> Vec<Self> {
        let mut all = features.to_vec();
        all.sort();
        all.dedup();
        let mut sets = vec![Vec::new()];
        sets.extend(all.iter().map(|feature| vec![feature.clone()]));
        if all.len() > 1 {
            sets.push(all);
        }
        sets.into_iter().map(|features| Self { features, ..Self::default() }).collect()
    }

    /// The same features in every kind of sandbox, the ordinary one first.
    pub fn kinds(&self) -> [Self; 4] {
        let kind = |retained, superuser| Self { features: self.features.clone(), retained, superuser };
        [kind(false, false), kind(true, false), kind(false, true), kind(true, true)]
    }

    /// What kind of sandbox it is for, where that is not the ordinary one.
    pub fn kind(&self) -> &'static str {
        match (self.retained, self.superuser) {
            (false, false) => "",
            (true, false) => "retained",
            (false, true) => "superuser",
            (true, true) => "retained, superuser",
        }
    }
}

impl fmt::Display for Wish {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.features.len() {
            0 => f.write_str("no feature")?,
            1 => f.write_str(&listed(&self.features))?,
            n => write!(f, "{n} features together")?,
        }
        match self.kind() {
            "" => Ok(()),
            kind => write!(f, ", {kind}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_combination_that_a_host_tries() {
        let texts = |features: &[&str]| {
            let features: Vec<_> = features.iter().map(|f| (*f).to_owned()).collect();
            Wish::each(&features).iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        assert_eq!(texts(&[]), ["no feature"]);
        assert_eq!(texts(&["a"]), ["no feature", "`a`"]);
        assert_eq!(texts(&["b", "a", "b"]), ["no feature", "`a`", "`b`", "2 features together"]);
        assert_eq!(Wish::default().kinds().map(|w| w.to_string())[3], "no feature, retained, superuser");
    }
}
