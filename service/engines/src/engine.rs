//! Engines: the languages on offer, their optional parts, and their descriptions.
//!
//! Whether a language can be run is not known here: a service's sandbox backend says which engines it
//! has, and an engine of this table that it doesn't have is unavailable there.

use seance_core::catalog::Catalog;
use seance_core::link::GuestTool;
use seance_core::value;

use crate::declare::{Declarations, Dialect};
use crate::names::{self, Alias, NameError};
use crate::{javascript, prompt, python, ruby};

/// All engines, in the order people see.
pub const ALL: &[Engine] = &[
    Engine {
        name: "javascript",
        languages: &["javascript", "typescript"],
        options: javascript::OPTIONS,
        guest: Guest::JavaScript,
    },
    Engine { name: "python", languages: &["python"], options: python::OPTIONS, guest: Guest::Python },
    Engine { name: "ruby", languages: &["ruby"], options: ruby::OPTIONS, guest: Guest::Ruby },
];

/// The option that every engine has.
pub(crate) const WAIT_ON_DEADLOCK: EngineOption = EngineOption {
    name: "wait_on_deadlock",
    description: "a program that can never go on waits for its wall limit instead of failing",
};

/// The engine of this name.
pub fn by_name(name: &str) -> Option<&'static Engine> {
    ALL.iter().find(|engine| engine.name == name)
}

/// The engine that runs this language.
pub fn by_language(language: &str) -> Option<&'static Engine> {
    ALL.iter().find(|engine| engine.languages.contains(&language))
}

/// A language as offered to the model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Engine {
    /// Its name.
    pub name: &'static str,
    /// What Execute may name as the language of a program.
    pub languages: &'static [&'static str],
    /// The parts a session may have turned on.
    pub options: &'static [EngineOption],
    guest: Guest,
}

/// A part of an engine that is off unless a session asks for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EngineOption {
    /// Its name.
    pub name: &'static str,
    /// What a program has with it.
    pub description: &'static str,
}

/// The language whose rules hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Guest {
    JavaScript,
    Python,
    Ruby,
}

/// What to tell a model about an engine and a catalog.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Description {
    /// How to write programs, for a system prompt. Ends with the declarations, or with the tools' names
    /// where the declarations take more than 64 KiB.
    pub instructions: String,
    /// The tools' declarations alone.
    pub declarations: String,
    /// The tools' names in programs, in the catalog's order.
    pub aliases: Vec<Alias>,
}

/// Why there is no description.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// A tool can't have its name in this language.
    #[error(transparent)]
    Name(#[from] NameError),
    /// A tool's schema is no JSON.
    #[error("the {which} schema of tool {tool:?}: {source}")]
    Schema {
        /// The tool.
        tool: String,
        /// "input" or "output".
        which: &'static str,
        /// What is wrong.
        #[source]
        source: value::Error,
    },
    /// The engine has no such option.
    #[error("the {engine} engine has no option {option:?}; it has {known}")]
    UnknownOption {
        /// The engine.
        engine: &'static str,
        /// What was asked for, cut to 64 characters.
        option: String,
        /// The options it has.
        known: String,
    },
}

impl Engine {
    /// The names of the tools in programs, in the catalog's order (F1). Refuses what the language or
    /// this service needs for itself, and two tools that would have one name (F2, F3).
    pub fn names(&self, catalog: &Catalog) -> Result<Vec<Alias>, NameError> {
        match self.guest {
            Guest::JavaScript => names::assign(catalog, javascript::alias_of, &[]),
            Guest::Python => names::assign(catalog, python::alias_of, &[]),
            Guest::Ruby => names::assign(catalog, ruby::alias_of, ruby::RESERVED),
        }
    }

    /// The tools as programs see them in `ALL_TOOLS`, in the catalog's order. In Ruby a description is the
    /// whole signature (F12); in other languages it is the declaration where a prompt has no room for it,
    /// so that programs can look for what they need and read how to call it.
    pub fn guest_tools(&self, catalog: &Catalog) -> Result<Vec<GuestTool>, Error> {
        let aliases = self.names(catalog)?;
        let declarations = self.declarations(catalog, &aliases)?;
        let is_shown = self.guest == Guest::Ruby || prompt::is_over(&declarations.text());
        let descriptions = match is_shown {
            true => declarations.each(catalog),
            false => catalog.tools().iter().map(|tool| tool.description.clone()).collect(),
        };
        let tools = aliases.into_iter().zip(descriptions);
        Ok(tools.map(|(Alias { name, alias }, description)| GuestTool { name, alias, description }).collect())
    }

    fn declarations(&self, catalog: &Catalog, aliases: &[Alias]) -> Result<Declarations, Error> {
        let dialect: &dyn Dialect = match self.guest {
            Guest::JavaScript => &javascript::TypeScript,
            Guest::Python => &python::Stubs::new(aliases.iter().map(|alias| alias.alias.as_str())),
            Guest::Ruby => &ruby::Signatures,
        };
        Declarations::new(dialect, catalog, aliases)
    }

    /// Refuses an option that the engine doesn't have.
    pub fn check_options<S: AsRef<str>>(&self, options: &[S]) -> Result<(), Error> {
        let is_known = |name: &str| self.options.iter().any(|option| option.name == name);
        let Some(unknown) = options.iter().map(AsRef::as_ref).find(|name| !is_known(name)) else {
            return Ok(());
        };
        let known = self.options.iter().map(|option| option.name).collect::<Vec<_>>().join(", ");
        Err(Error::UnknownOption { engine: self.name, option: unknown.chars().take(64).collect(), known })
    }

    /// What to tell a model whose programs have these tools and options. The same arguments give the
    /// same text. Names are checked here too, as they are when a program runs (F4).
    ///
    /// Declarations take at most 1 MiB. A tool whose schemas take more than 32 KiB is shown with less
    /// detail, and so are the tools at the end of a catalog that is too large.
    pub fn describe<S: AsRef<str>>(&self, catalog: &Catalog, options: &[S]) -> Result<Description, Error> {
        self.check_options(options)?;
        let aliases = self.names(catalog)?;
        let declarations = self.declarations(catalog, &aliases)?.text();
        let is_on = |name: &str| options.iter().any(|option| option.as_ref() == name);
        let waits = is_on(WAIT_ON_DEADLOCK.name);
        let instructions = match self.guest {
            Guest::JavaScript => {
                javascript::instructions(&javascript::LISTING.text(&declarations, &aliases), is_on)
            }
            Guest::Python => python::instructions(&python::LISTING.text(&declarations, &aliases), waits),
            Guest::Ruby => ruby::instructions(&ruby::LISTING.text(&declarations, &aliases), waits),
        };
        Ok(Description { instructions, declarations, aliases })
    }
}
