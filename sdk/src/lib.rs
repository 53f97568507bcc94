//! What the author of a Sandbar engine builds on.
//!
//! An engine is a WebAssembly component that answers one question: how is a sandbox of this service made? It performs
//! nothing, sees no password and has no imports. This crate holds the types of the contract (`wit/sandbox-engine.wit`,
//! whose own comments are on them here), constructors with sensible defaults, the trait [`Engine`], and
//! [`export_engine!`], which turns an implementation into the component's exports. It does not talk to containers, and
//! it does not build the component: `sandbar-engine-build` does.
//!
//! A whole engine:
//!
//! ```
//! use sandbar_sdk::{Account, Command, Container, Descriptor, Engine, Error, Recipe, Request, Variable, export_engine};
//!
//! struct MariaDb;
//!
//! impl Engine for MariaDb {
//!     fn describe() -> Descriptor {
//!         Descriptor::new("mariadb", "maria", "11.0.0", "MariaDB with one database and one account")
//!             .setting("image", "mariadb:11", "The image to run")
//!     }
//!
//!     fn plan(request: Request) -> Result<Recipe, Error> {
//!         let container = Container::new(request.setting("image")?)
//!             .user("mysql")
//!             .env("MARIADB_USER", "{user}")
//!             .env("MARIADB_PASSWORD", "{password}")
//!             .env("MARIADB_DATABASE", "{database}")
//!             .env("MARIADB_ROOT_PASSWORD", "{admin_password}")
//!             .command(["--datadir=/var/lib/mysql/data"])
//!             .data_dir("/var/lib/mysql", request.memory_share(2))
//!             .port(3306)
//!             .account(Account::user("sandbox").database("sandbox").with_admin());
//!         let probe = ["mariadb", "-h", "{address}", "-P", "{port}", "-u", "{user}", "-Ne", "select 1", "{database}"];
//!         let ready = Command::new(probe).env("MYSQL_PWD", "{password}").expect_stdout("1");
//!         Ok(Recipe::new(container, ready)
//!             .variable(Variable::prefixed("MARIADB_HOST", "{host}"))
//!             .variable(Variable::prefixed("MARIADB_PASSWORD", "{password}")))
//!     }
//! }
//!
//! export_engine!(MariaDb);
//!
//! # fn main() {
//! sandbar_sdk::testing::check::<MariaDb>();
//! # }
//! ```
//!
//! The crate of an engine has `crate-type = ["cdylib", "rlib"]` and depends on this crate alone; since it also compiles
//! natively, plain unit tests can look at what it answers ([`testing`] helps). What it needs from an operator stands in
//! its `Cargo.toml`:
//!
//! ```toml
//! [package.metadata.sandbar.grant]
//! images = ["mariadb:*"]
//! data_dirs = ["/var/lib/mysql"]
//! ```

#[doc(hidden)]
pub mod bindings;
mod descriptor;
mod recipe;
mod template;
pub mod testing;

pub use bindings::exports::sandbar::engine::engine::{
    Account, Command, Container, DataDir, Descriptor, Error, Expectation, Feature, File, Pairs, Recipe, Request,
    Setting, Step, Template, Variable,
};
pub use template::literal;

/// What every engine implements. Both functions are pure: the same question always gets the same answer, and nothing
/// may be remembered between calls, since the host makes a new instance for each.
pub trait Engine {
    /// Says what this engine is.
    fn describe() -> Descriptor;

    /// Answers the recipe for a request.
    ///
    /// # Errors
    ///
    /// What the contract knows: a feature or combination that cannot be had, a setting that cannot be used, or anything
    /// else in one line.
    fn plan(request: Request) -> Result<Recipe, Error>;
}

impl<T: Engine> bindings::exports::sandbar::engine::engine::Guest for T {
    fn describe() -> Descriptor {
        T::describe()
    }

    fn plan(request: Request) -> Result<Recipe, Error> {
        T::plan(request)
    }
}

/// Makes a type that implements [`Engine`] what the component exports. Once in a crate, at its root.
///
/// Natively it only checks that the type is an engine: the exported symbols have fixed names, so two engines in one test
/// binary would clash.
#[macro_export]
macro_rules! export_engine {
    ($engine:ident) => {
        const _: fn() -> $crate::Descriptor = <$engine as $crate::Engine>::describe;

        #[cfg(target_arch = "wasm32")]
        const _: () = {
    $crate::bindings::export!($engine with_types_in $crate::bindings);
        };
    };
}
