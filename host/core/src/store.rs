//! What Docker cannot remember: agents with the hashes of their tokens, their work, and what was toggled while the
//! host ran. One SQLite database; every call is one transaction and is durable when it returns. Containers are not in
//! it: Docker remembers those.

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rusqlite::{Connection, OptionalExtension, params};

use crate::name::{AgentName, ProjectName, ServiceName};
use crate::owner::Tenant;
use crate::plan::Secrets;
use crate::project::Declared;
use crate::secret::Secret;

/// A failure of the state file. The caller sees an internal error; the log has this.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// SQLite's own words. (Not as a source too, which would say them twice.)
    #[error("the state file: {0}")]
    Sqlite(rusqlite::Error),
    /// Its bytes are not those of a database.
    #[error(
        "the state file is damaged ({0}). Restore it, or move `state.sqlite` and the files beside it whose names begin \
         so away, and start again: agents that were registered while a host ran, all work, and what the operator set by \
         verbs are lost then, and sandboxes are given up"
    )]
    Damaged(rusqlite::Error),
    /// It is not where it was opened.
    #[error(
        "the state file was moved away or replaced while the host runs, and what the host writes is lost: put it back, or \
         restart the host to go on with what is there"
    )]
    Gone,
    /// There is no room for it.
    #[error("the disk that the state file is on is full: make room there")]
    Full,
    /// It was written by a later version.
    #[error("the state file has version {0}, and this host knows versions up to {VERSION}; run a later host")]
    TooNew(i64),
}

impl From<rusqlite::Error> for StoreError {
    fn from(e: rusqlite::Error) -> Self {
        use rusqlite::ErrorCode::{DatabaseCorrupt, DiskFull, NotADatabase};
        /// SQLite's word for no room in the file that readers share, which is no `DiskFull` to it.
        const SHARED_FILE_SIZE: i32 = 4874;
        match e.sqlite_error() {
            Some(cause) if matches!(cause.code, DatabaseCorrupt | NotADatabase) => Self::Damaged(e),
            Some(cause) if cause.code == DiskFull || cause.extended_code == SHARED_FILE_SIZE => Self::Full,
            _ => Self::Sqlite(e),
        }
    }
}

/// Version of the schema, kept in `user_version`.
const VERSION: i64 = 3;

const SCHEMA: &str = "
CREATE TABLE agents (
    name TEXT PRIMARY KEY, role TEXT NOT NULL, token_sha256 TEXT NOT NULL UNIQUE,
    incarnation INTEGER NOT NULL, registered_by TEXT NOT NULL, created_unix INTEGER NOT NULL
) STRICT;
CREATE TABLE counters (name TEXT PRIMARY KEY, value INTEGER NOT NULL) STRICT;
CREATE TABLE work (
    agent TEXT PRIMARY KEY, project TEXT NOT NULL, id INTEGER NOT NULL, begun_unix INTEGER NOT NULL
) STRICT;
CREATE TABLE switches (name TEXT PRIMARY KEY, enabled INTEGER NOT NULL) STRICT;
CREATE TABLE projects (name TEXT PRIMARY KEY, declared TEXT NOT NULL) STRICT;
";

/// Since version 2: what is retained, with the passwords that its data knows.
const SCHEMA_2: &str = "
CREATE TABLE kept (
    key TEXT NOT NULL, service TEXT NOT NULL, project TEXT NOT NULL, agent TEXT NOT NULL, incarnation INTEGER,
    password TEXT, admin_password TEXT, made INTEGER NOT NULL, asleep_secs INTEGER NOT NULL, PRIMARY KEY (key, service)
) STRICT;
CREATE TABLE artifacts (
    id TEXT PRIMARY KEY, agent TEXT NOT NULL, incarnation INTEGER, project TEXT NOT NULL, name TEXT NOT NULL,
    sha256 TEXT NOT NULL, size INTEGER NOT NULL, created_unix INTEGER NOT NULL
) STRICT;
";

/// Since version 3: who got what was ready before.
const SCHEMA_3: &str = "
CREATE TABLE handed_out (container TEXT PRIMARY KEY, agent TEXT NOT NULL, project TEXT NOT NULL) STRICT;
";

/// A container that was made before anybody asked for it, and who got it. Its labels cannot tell, as Docker changes none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HandOut {
    /// The runtime's id of it.
    pub container: String,
    /// Who got it.
    pub agent: AgentName,
    /// For which project.
    pub project: ProjectName,
}

/// A file that was copied out of a box.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ArtifactRow {
    /// Its id.
    pub id: String,
    /// Who made it.
    pub tenant: Tenant,
    /// What its maker calls it.
    pub name: String,
    /// Hex SHA-256 of its content.
    pub sha256: String,
    /// Its size in bytes.
    pub size: u64,
}

/// Something retained, awake or asleep.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeptRow {
    /// Its owner key.
    pub key: String,
    /// Its service.
    pub service: ServiceName,
    /// Whose it is.
    pub tenant: Tenant,
    /// Its passwords, where it has an account.
    pub secrets: Option<Secrets>,
    /// Whether it was whole once: before that its data is of no use to anybody.
    pub made: bool,
    /// For how long it has been asleep, in seconds of this host's running time.
    pub asleep_secs: u64,
}

/// An agent that was registered while the host ran.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AgentRow {
    /// Its slug.
    pub name: AgentName,
    /// Its job.
    pub role: String,
    /// Hex SHA-256 of its token.
    pub token_sha256: String,
    /// Tells it from earlier agents of the same slug.
    pub incarnation: u64,
    /// The orchestrator that registered it.
    pub registered_by: String,
}

/// The binding of an agent to a project.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkRow {
    /// The agent.
    pub agent: AgentName,
    /// What it works on.
    pub project: ProjectName,
    /// Tells this work from earlier ones.
    pub id: u64,
}

/// The state file.
pub struct Store {
    db: Mutex<Connection>,
    /// Where it is, and as which inode, unless it is in memory.
    file: Option<(PathBuf, u64)>,
}

impl Store {
    /// Opens or makes it.
    ///
    /// # Errors
    /// When it cannot be opened, or was written by a later version.
    pub fn open(path: &Path) -> Result<Self, StoreError> {
        let store = Self::prepare(Connection::open(path)?)?;
        let file = std::fs::metadata(path).ok().map(|found| (path.to_owned(), found.ino()));
        Ok(Self { file, ..store })
    }

    /// One in memory, for tests and simulations.
    ///
    /// # Errors
    /// When SQLite has no memory.
    pub fn memory() -> Result<Self, StoreError> {
        Self::prepare(Connection::open_in_memory()?)
    }

    fn prepare(mut connection: Connection) -> Result<Self, StoreError> {
        // WAL keeps readers of the file (a backup, a curious operator) from blocking the host.
        connection.query_row("PRAGMA journal_mode = WAL", [], |_| Ok(()))?;
        connection.execute_batch("PRAGMA synchronous = FULL; PRAGMA foreign_keys = ON; PRAGMA busy_timeout = 2000;")?;
        let tx = connection.transaction_with_behavior(rusqlite::TransactionBehavior::Immediate)?;
        let version: i64 = tx.query_row("PRAGMA user_version", [], |r| r.get(0))?;
        if version > VERSION {
            return Err(StoreError::TooNew(version));
        }
        if version < 1 {
            tx.execute_batch(SCHEMA)?;
        }
        if version < 2 {
            tx.execute_batch(SCHEMA_2)?;
        }
        if version < 3 {
            tx.execute_batch(SCHEMA_3)?;
        }
        tx.pragma_update(None, "user_version", VERSION)?;
        tx.commit()?;
        Ok(Self { db: Mutex::new(connection), file: None })
    }

    /// Whether it can be written, and what is written lands in the file that the next start opens.
    ///
    /// # Errors
    /// When not.
    pub fn check(&self) -> Result<(), StoreError> {
        self.db().execute_batch("BEGIN IMMEDIATE; ROLLBACK")?;
        let is_there =
            |(path, inode): &(PathBuf, u64)| std::fs::metadata(path).is_ok_and(|found| found.ino() == *inode);
        if self.file.as_ref().is_none_or(is_there) { Ok(()) } else { Err(StoreError::Gone) }
    }

    fn db(&self) -> MutexGuard<'_, Connection> {
        // A panic while it was held rolled its transaction back, so the connection is sound.
        self.db.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Every registered agent.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn agents(&self) -> Result<Vec<AgentRow>, StoreError> {
        let db = self.db();
        let mut query =
            db.prepare("SELECT name, role, token_sha256, incarnation, registered_by FROM agents ORDER BY name")?;
        let rows = query.query_map([], |r| {
            let name: String = r.get(0)?;
            let name = AgentName::new(&name).map_err(|e| bad_column(0, e))?;
            Ok(AgentRow {
                name,
                role: r.get(1)?,
                token_sha256: r.get(2)?,
                incarnation: r.get::<_, i64>(3)?.cast_unsigned(),
                registered_by: r.get(4)?,
            })
        })?;
        Ok(rows.collect::<Result<_, _>>()?)
    }

    /// Adds an agent and answers its incarnation, or `None` when the slug exists.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn add_agent(
        &self,
        name: &AgentName,
        role: &str,
        token_sha256: &str,
        by: &str,
    ) -> Result<Option<u64>, StoreError> {
        let mut db = self.db();
        let tx = db.transaction()?;
        let incarnation = next(&tx, "incarnation")?;
        let added = tx.execute(
            "INSERT INTO agents VALUES (?1, ?2, ?3, ?4, ?5, unixepoch()) ON CONFLICT (name) DO NOTHING",
            params![name.as_str(), role, token_sha256, incarnation, by],
        )?;
        if added == 0 {
            return Ok(None);
        }
        tx.commit()?;
        Ok(Some(incarnation.cast_unsigned()))
    }

    /// Gives an agent another token. Answers whether there is such an agent.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn set_token(&self, name: &AgentName, token_sha256: &str) -> Result<bool, StoreError> {
        let sql = "UPDATE agents SET token_sha256 = ?2 WHERE name = ?1";
        Ok(self.db().execute(sql, params![name.as_str(), token_sha256])? > 0)
    }

    /// Removes an agent and its work. Answers whether there was such an agent.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn remove_agent(&self, name: &AgentName) -> Result<bool, StoreError> {
        let mut db = self.db();
        let tx = db.transaction()?;
        let removed = tx.execute("DELETE FROM agents WHERE name = ?1", [name.as_str()])?;
        tx.execute("DELETE FROM work WHERE agent = ?1", [name.as_str()])?;
        tx.commit()?;
        Ok(removed > 0)
    }

    /// All work.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn work(&self) -> Result<Vec<WorkRow>, StoreError> {
        let db = self.db();
        let mut query = db.prepare("SELECT agent, project, id FROM work ORDER BY agent")?;
        let rows = query.query_map([], |r| {
            let (agent, project): (String, String) = (r.get(0)?, r.get(1)?);
            Ok(WorkRow {
                agent: AgentName::new(&agent).map_err(|e| bad_column(0, e))?,
                project: ProjectName::new(&project).map_err(|e| bad_column(1, e))?,
                id: r.get::<_, i64>(2)?.cast_unsigned(),
            })
        })?;
        Ok(rows.collect::<Result<_, _>>()?)
    }

    /// Binds an agent to a project in place of what it worked on, and answers the work's id.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn begin_work(&self, agent: &AgentName, project: &ProjectName) -> Result<u64, StoreError> {
        let mut db = self.db();
        let tx = db.transaction()?;
        let id = next(&tx, "work")?;
        tx.execute(
            "INSERT OR REPLACE INTO work VALUES (?1, ?2, ?3, unixepoch())",
            params![agent.as_str(), project.as_str(), id],
        )?;
        tx.commit()?;
        Ok(id.cast_unsigned())
    }

    /// Ends an agent's work. No work is no error.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn end_work(&self, agent: &AgentName) -> Result<(), StoreError> {
        self.db().execute("DELETE FROM work WHERE agent = ?1", [agent.as_str()])?;
        Ok(())
    }
}

/// What the operator toggled while the host ran.
impl Store {
    /// How the master switch was set last, if it ever was.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn switch(&self) -> Result<Option<bool>, StoreError> {
        let sql = "SELECT enabled FROM switches WHERE name = 'sandbox'";
        Ok(self.db().query_row(sql, [], |r| r.get(0)).optional()?)
    }

    /// Keeps how the master switch is set.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn set_switch(&self, enabled: bool) -> Result<(), StoreError> {
        self.db().execute("INSERT OR REPLACE INTO switches VALUES ('sandbox', ?1)", [enabled])?;
        Ok(())
    }

    /// Every project that was declared while the host ran.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn projects(&self) -> Result<Vec<(ProjectName, Declared)>, StoreError> {
        let db = self.db();
        let mut query = db.prepare("SELECT name, declared FROM projects ORDER BY name")?;
        let rows = query.query_map([], |r| {
            let (name, declared): (String, String) = (r.get(0)?, r.get(1)?);
            let name = ProjectName::new(&name).map_err(|e| bad_column(0, e))?;
            Ok((name, serde_json::from_str(&declared).map_err(|e| bad_column(1, e))?))
        })?;
        Ok(rows.collect::<Result<_, _>>()?)
    }

    /// Keeps a project, in place of what was declared of it before.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn set_project(&self, name: &ProjectName, declared: &Declared) -> Result<(), StoreError> {
        let declared =
            serde_json::to_string(declared).map_err(|e| rusqlite::Error::ToSqlConversionFailure(e.into()))?;
        self.db().execute("INSERT OR REPLACE INTO projects VALUES (?1, ?2)", params![name.as_str(), declared])?;
        Ok(())
    }
}

/// What is retained.
impl Store {
    /// Everything.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn kept(&self) -> Result<Vec<KeptRow>, StoreError> {
        let db = self.db();
        let mut query = db.prepare(
            "SELECT key, service, project, agent, incarnation, password, admin_password, made, asleep_secs FROM kept
             ORDER BY key, service",
        )?;
        let rows = query.query_map([], |r| {
            let (service, project, agent): (String, String, String) = (r.get(1)?, r.get(2)?, r.get(3)?);
            let (password, admin): (Option<String>, Option<String>) = (r.get(5)?, r.get(6)?);
            Ok(KeptRow {
                key: r.get(0)?,
                service: ServiceName::new(&service).map_err(|e| bad_column(1, e))?,
                tenant: Tenant {
                    project: ProjectName::new(&project).map_err(|e| bad_column(2, e))?,
                    agent: AgentName::new(&agent).map_err(|e| bad_column(3, e))?,
                    incarnation: r.get::<_, Option<i64>>(4)?.map(i64::cast_unsigned),
                },
                secrets: password.map(|p| Secrets { password: Secret::new(&p), admin: admin.map(|a| Secret::new(&a)) }),
                made: r.get(7)?,
                asleep_secs: r.get::<_, i64>(8)?.cast_unsigned(),
            })
        })?;
        Ok(rows.collect::<Result<_, _>>()?)
    }

    /// Notes something that is about to be made, with the passwords that its data will know.
    ///
    /// # Errors
    /// When the file cannot be written, or it is noted already.
    pub fn add_kept(&self, row: &KeptRow) -> Result<(), StoreError> {
        let secrets = row.secrets.as_ref();
        self.db().execute(
            "INSERT INTO kept VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)",
            params![
                row.key,
                row.service.as_str(),
                row.tenant.project.as_str(),
                row.tenant.agent.as_str(),
                row.tenant.incarnation.map(u64::cast_signed),
                secrets.map(|s| s.password.reveal()),
                secrets.and_then(|s| s.admin.as_ref()).map(Secret::reveal),
                row.made,
                row.asleep_secs.cast_signed(),
            ],
        )?;
        Ok(())
    }

    /// Notes that something is whole.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn set_made(&self, key: &str, service: &ServiceName) -> Result<(), StoreError> {
        let sql = "UPDATE kept SET made = 1, asleep_secs = 0 WHERE key = ?1 AND service = ?2";
        self.db().execute(sql, params![key, service.as_str()])?;
        Ok(())
    }

    /// Notes for how long something has been asleep.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn set_asleep(&self, key: &str, service: &ServiceName, secs: u64) -> Result<(), StoreError> {
        let sql = "UPDATE kept SET asleep_secs = ?3 WHERE key = ?1 AND service = ?2 AND asleep_secs <> ?3";
        self.db().execute(sql, params![key, service.as_str(), secs.cast_signed()])?;
        Ok(())
    }

    /// Notes that something has been asleep for so much longer.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn add_asleep(&self, key: &str, service: &ServiceName, secs: u64) -> Result<(), StoreError> {
        let sql = "UPDATE kept SET asleep_secs = asleep_secs + ?3 WHERE key = ?1 AND service = ?2 AND ?3 > 0";
        self.db().execute(sql, params![key, service.as_str(), secs.cast_signed()])?;
        Ok(())
    }

    /// Forgets something whose data is gone.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn remove_kept(&self, key: &str, service: &ServiceName) -> Result<(), StoreError> {
        self.db().execute("DELETE FROM kept WHERE key = ?1 AND service = ?2", params![key, service.as_str()])?;
        Ok(())
    }
}

/// What was ready before.
impl Store {
    /// Everything that was handed out.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn handed_out(&self) -> Result<Vec<HandOut>, StoreError> {
        let db = self.db();
        let mut query = db.prepare("SELECT container, agent, project FROM handed_out ORDER BY container")?;
        let rows = query.query_map([], |r| {
            let (agent, project): (String, String) = (r.get(1)?, r.get(2)?);
            Ok(HandOut {
                container: r.get(0)?,
                agent: AgentName::new(&agent).map_err(|e| bad_column(1, e))?,
                project: ProjectName::new(&project).map_err(|e| bad_column(2, e))?,
            })
        })?;
        Ok(rows.collect::<Result<_, _>>()?)
    }

    /// Notes who gets what. It outlives the host, and need not outlive a power cut as everything else does, which no
    /// throwaway container outlives either; so an agent does not wait for the disk.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn hand_out(&self, rows: &[HandOut]) -> Result<(), StoreError> {
        let mut db = self.db();
        db.execute_batch("PRAGMA synchronous = NORMAL")?;
        let noted = (|| {
            let tx = db.transaction()?;
            for HandOut { container, agent, project } in rows {
                let sql = "INSERT OR REPLACE INTO handed_out VALUES (?1, ?2, ?3)";
                tx.execute(sql, params![container, agent.as_str(), project.as_str()])?;
            }
            tx.commit()
        })();
        db.execute_batch("PRAGMA synchronous = FULL")?;
        Ok(noted?)
    }

    /// Forgets who got containers that are gone, or never got them.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn forget_handed_out(&self, containers: &[String]) -> Result<(), StoreError> {
        let mut db = self.db();
        let tx = db.transaction()?;
        for container in containers {
            tx.execute("DELETE FROM handed_out WHERE container = ?1", [container])?;
        }
        tx.commit()?;
        Ok(())
    }
}

/// What was copied out of boxes.
impl Store {
    /// One artifact.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn artifact(&self, id: &str) -> Result<Option<ArtifactRow>, StoreError> {
        let sql = "SELECT id, agent, incarnation, project, name, sha256, size FROM artifacts WHERE id = ?1";
        Ok(self.db().query_row(sql, [id], artifact).optional()?)
    }

    /// Every artifact of an agent.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn artifacts_of(&self, agent: &AgentName) -> Result<Vec<ArtifactRow>, StoreError> {
        let db = self.db();
        let mut query =
            db.prepare("SELECT id, agent, incarnation, project, name, sha256, size FROM artifacts WHERE agent = ?1")?;
        let rows = query.query_map([agent.as_str()], artifact)?;
        Ok(rows.collect::<Result<_, _>>()?)
    }

    /// Notes an artifact, in place of the one with its id. Answers the hash that nobody has any more because of it.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn set_artifact(&self, row: &ArtifactRow) -> Result<Option<String>, StoreError> {
        let mut db = self.db();
        let tx = db.transaction()?;
        let sql = "SELECT sha256 FROM artifacts WHERE id = ?1";
        let before: Option<String> = tx.query_row(sql, [&row.id], |r| r.get(0)).optional()?;
        tx.execute(
            "INSERT OR REPLACE INTO artifacts VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, unixepoch())",
            params![
                row.id,
                row.tenant.agent.as_str(),
                row.tenant.incarnation.map(u64::cast_signed),
                row.tenant.project.as_str(),
                row.name,
                row.sha256,
                row.size.cast_signed(),
            ],
        )?;
        let unused = unused(&tx, before)?;
        tx.commit()?;
        Ok(unused)
    }

    /// Forgets an artifact. Answers the hash that nobody has any more because of it.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn remove_artifact(&self, row: &ArtifactRow) -> Result<Option<String>, StoreError> {
        let mut db = self.db();
        let tx = db.transaction()?;
        tx.execute("DELETE FROM artifacts WHERE id = ?1", [&row.id])?;
        let unused = unused(&tx, Some(row.sha256.clone()))?;
        tx.commit()?;
        Ok(unused)
    }
}

fn artifact(r: &rusqlite::Row<'_>) -> Result<ArtifactRow, rusqlite::Error> {
    let (agent, project): (String, String) = (r.get(1)?, r.get(3)?);
    Ok(ArtifactRow {
        id: r.get(0)?,
        tenant: Tenant {
            agent: AgentName::new(&agent).map_err(|e| bad_column(1, e))?,
            incarnation: r.get::<_, Option<i64>>(2)?.map(i64::cast_unsigned),
            project: ProjectName::new(&project).map_err(|e| bad_column(3, e))?,
        },
        name: r.get(4)?,
        sha256: r.get(5)?,
        size: r.get::<_, i64>(6)?.cast_unsigned(),
    })
}

/// A hash, if no artifact has it.
fn unused(tx: &rusqlite::Transaction<'_>, sha256: Option<String>) -> Result<Option<String>, rusqlite::Error> {
    let Some(sha256) = sha256 else { return Ok(None) };
    let used: i64 = tx.query_row("SELECT count(*) FROM artifacts WHERE sha256 = ?1", [&sha256], |r| r.get(0))?;
    Ok((used == 0).then_some(sha256))
}

fn bad_column(i: usize, e: impl std::error::Error + Send + Sync + 'static) -> rusqlite::Error {
    rusqlite::Error::FromSqlConversionFailure(i, rusqlite::types::Type::Text, Box::new(e))
}

fn next(tx: &rusqlite::Transaction<'_>, counter: &str) -> Result<i64, rusqlite::Error> {
    tx.query_row(
        "INSERT INTO counters VALUES (?1, 1) ON CONFLICT (name) DO UPDATE SET value = value + 1 RETURNING value",
        [counter],
        |r| r.get(0),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agents_and_work_survive_and_slugs_are_refused_twice() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("state.sqlite");
        let (agent, project) = (AgentName::new("a").unwrap(), ProjectName::new("shop").unwrap());
        {
            let store = Store::open(&path).unwrap();
            assert_eq!(store.add_agent(&agent, "developer", "h1", "main").unwrap(), Some(1));
            assert_eq!(store.add_agent(&agent, "developer", "h2", "main").unwrap(), None);
            assert_eq!(store.begin_work(&agent, &project).unwrap(), 1);
            assert_eq!(store.begin_work(&agent, &project).unwrap(), 2);
        }
        let store = Store::open(&path).unwrap();
        assert_eq!(store.agents().unwrap()[0].token_sha256, "h1");
        assert_eq!(store.work().unwrap(), [WorkRow { agent: agent.clone(), project, id: 2 }]);
        assert!(store.remove_agent(&agent).unwrap());
        assert!(store.work().unwrap().is_empty());
        // Incarnations are never used twice.
        assert!(store.add_agent(&agent, "developer", "h3", "main").unwrap() > Some(1));
    }

    #[test]
    fn what_is_kept_is_found_again_and_a_file_of_version_1_is_taken_over() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("state.sqlite");
        {
            let old = Connection::open(&path).unwrap();
            old.execute_batch(SCHEMA).unwrap();
            old.pragma_update(None, "user_version", 1).unwrap();
        }
        let tenant = |incarnation| Tenant {
            project: ProjectName::new("shop").unwrap(),
            agent: AgentName::new("a").unwrap(),
            incarnation,
        };
        let row = |key: &str, incarnation, secrets| KeptRow {
            key: key.to_owned(),
            service: ServiceName::new("box").unwrap(),
            tenant: tenant(incarnation),
            secrets,
            made: false,
            asleep_secs: 0,
        };
        let secrets = Secrets { password: Secret::new("p"), admin: Some(Secret::new("q")) };
        let rows = [row("k1", None, None), row("k2", Some(3), Some(secrets))];
        {
            let store = Store::open(&path).unwrap();
            rows.iter().for_each(|row| store.add_kept(row).unwrap());
            assert!(store.add_kept(&rows[0]).is_err());
            store.set_made("k1", &rows[0].service).unwrap();
            store.set_asleep("k1", &rows[0].service, 20).unwrap();
            store.add_asleep("k1", &rows[0].service, 40).unwrap();
        }
        let store = Store::open(&path).unwrap();
        assert_eq!(
            store.kept().unwrap(),
            [KeptRow { made: true, asleep_secs: 60, ..rows[0].clone() }, rows[1].clone()]
        );
        store.remove_kept("k1", &rows[0].service).unwrap();
        assert_eq!(store.kept().unwrap(), rows[1..]);
    }

    #[test]
    fn a_damaged_file_is_told_from_others_and_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("state.sqlite");
        let noise = "no database at all ".repeat(1000);
        std::fs::write(&path, &noise).unwrap();
        let error = Store::open(&path).err().unwrap();
        assert!(matches!(error, StoreError::Damaged(_)), "{error}");
        assert!(std::error::Error::source(&error).is_none(), "its cause is in the message already");
        assert_eq!(std::fs::read_to_string(&path).unwrap(), noise);
    }

    #[test]
    fn a_full_disk_is_told_from_others() {
        let store = Store::memory().unwrap();
        store.db().pragma_update(None, "max_page_count", 1).unwrap();
        let agent = |n: u32| AgentName::new(format!("a{n}")).unwrap();
        let error = (0..10_000).find_map(|n| store.add_agent(&agent(n), "developer", &n.to_string(), "main").err());
        assert!(matches!(error, Some(StoreError::Full)), "{error:?}");
    }

    #[test]
    fn a_later_version_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("state.sqlite");
        drop(Store::open(&path).unwrap());
        Connection::open(&path).unwrap().pragma_update(None, "user_version", VERSION + 1).unwrap();
        assert!(matches!(Store::open(&path), Err(StoreError::TooNew(v)) if v == VERSION + 1));
    }
}
