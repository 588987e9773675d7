//! The names of the tables, checked once and quoted everywhere.

use std::{collections::BTreeMap, fmt};

use sea_orm::DbBackend;

/// The target whose outbox is called `outbox`.
pub(crate) const DEFAULT_TARGET: &str = "default";

/// PostgreSQL cuts names after 63 bytes; the rest is for the suffixes of indexes.
const MAX_NAME: usize = 48;

/// A name of a table, schema or target is not allowed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the name {name:?} is not allowed: {why}")]
pub struct NameError {
    name: String,
    why: &'static str,
}

impl NameError {
    pub(crate) fn new(name: &str, why: &'static str) -> Self {
        Self {
            name: name.chars().take(80).collect(),
            why,
        }
    }
}

/// Checks a name of a table or schema: `[A-Za-z_][A-Za-z0-9_]*`, at most 48 bytes. Mixed case and
/// reserved words are fine, since names are always quoted.
fn check(name: &str) -> Result<(), NameError> {
    let first = name.bytes().next();
    if !first.is_some_and(|byte| byte.is_ascii_alphabetic() || byte == b'_') {
        return Err(NameError::new(name, "it must begin with a letter or `_`"));
    }
    if !name
        .bytes()
        .all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
    {
        return Err(NameError::new(
            name,
            "it must consist of ASCII letters, digits and `_`",
        ));
    }
    if name.len() > MAX_NAME {
        return Err(NameError::new(name, "it is longer than 48 bytes"));
    }
    Ok(())
}

/// A table's name, plain and as it stands in statements.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Table {
    /// The bare name.
    pub(crate) name: String,
    /// Quoted, with its schema in front.
    quoted: String,
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.quoted)
    }
}

/// What the tables are to be called.
#[derive(Debug, Clone, Default)]
pub(crate) struct Names {
    pub(crate) schema: Option<String>,
    pub(crate) prefix: String,
    pub(crate) outbox: Option<String>,
    pub(crate) held: Option<String>,
    pub(crate) lease: Option<String>,
    pub(crate) inbox: Option<String>,
    pub(crate) attempt: Option<String>,
    pub(crate) archive: Option<String>,
    pub(crate) migration: Option<String>,
    pub(crate) targets: Vec<String>,
}

/// The tables of one store.
#[derive(Debug, Clone)]
pub(crate) struct Tables {
    pub(crate) schema: Option<String>,
    pub(crate) held: Table,
    pub(crate) lease: Table,
    pub(crate) inbox: Table,
    pub(crate) attempt: Table,
    pub(crate) archive: Table,
    pub(crate) migration: Table,
    outboxes: BTreeMap<String, Table>,
}

impl Tables {
    pub(crate) fn new(names: &Names, backend: DbBackend) -> Result<Self, NameError> {
        if let Some(schema) = &names.schema {
            check(schema)?;
            if backend == DbBackend::Sqlite {
                return Err(NameError::new(
                    schema,
                    "SQLite has no schemas; use a prefix",
                ));
            }
        }
        let table = |chosen: Option<&str>, default: &str| {
            let name = chosen.map_or_else(|| format!("{}{default}", names.prefix), str::to_owned);
            check(&name)?;
            let schema = names.schema.as_deref();
            let quoted = match schema {
                Some(schema) => format!("{}.{}", quote(backend, schema), quote(backend, &name)),
                None => quote(backend, &name),
            };
            Ok(Table { name, quoted })
        };
        let outbox = table(names.outbox.as_deref(), "outbox")?;
        let mut outboxes = BTreeMap::new();
        for target in &names.targets {
            let name = format!("{}_{target}", outbox.name);
            outboxes.insert(target.clone(), table(Some(&name), "")?);
        }
        outboxes.insert(DEFAULT_TARGET.to_owned(), outbox);
        let tables = Self {
            schema: names.schema.clone(),
            held: table(names.held.as_deref(), "outbox_held")?,
            lease: table(names.lease.as_deref(), "outbox_lease")?,
            inbox: table(names.inbox.as_deref(), "inbox")?,
            attempt: table(names.attempt.as_deref(), "inbox_attempt")?,
            archive: table(names.archive.as_deref(), "outbox_archive")?,
            migration: table(names.migration.as_deref(), "outbox_migration")?,
            outboxes,
        };
        tables.all_differ()?;
        Ok(tables)
    }

    /// The outbox of `target`, if the store was built with that target.
    pub(crate) fn outbox(&self, target: &str) -> Option<&Table> {
        self.outboxes.get(target)
    }

    /// Every target and its outbox.
    pub(crate) fn outboxes(&self) -> impl Iterator<Item = (&str, &Table)> {
        self.outboxes
            .iter()
            .map(|(target, table)| (target.as_str(), table))
    }

    /// MySQL and SQLite may compare names without case.
    fn all_differ(&self) -> Result<(), NameError> {
        let others = [
            &self.held,
            &self.lease,
            &self.inbox,
            &self.attempt,
            &self.archive,
            &self.migration,
        ];
        let mut seen = Vec::new();
        for table in self.outboxes.values().chain(others) {
            let name = table.name.to_ascii_lowercase();
            if seen.contains(&name) {
                return Err(NameError::new(&table.name, "two tables would be called so"));
            }
            seen.push(name);
        }
        Ok(())
    }
}

/// Quotes a name that [`check`] accepted, so that case is kept and reserved words are names.
pub(crate) fn quote(backend: DbBackend, name: &str) -> String {
    match backend {
        DbBackend::MySql => format!("`{name}`"),
        _ => format!("\"{name}\""),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_checked_and_quoted() {
        let names = Names {
            schema: Some("MySchema".into()),
            prefix: "Msg".into(),
            ..Names::default()
        };
        let tables = Tables::new(&names, DbBackend::Postgres).unwrap();
        assert_eq!(tables.held.to_string(), r#""MySchema"."Msgoutbox_held""#);
        for name in [
            "",
            "1a",
            "a b",
            "a\"b",
            "a`b",
            "a.b",
            "ä",
            "a;--",
            &"x".repeat(49),
        ] {
            assert!(check(name).is_err(), "{name}");
        }
        assert!(
            Tables::new(&names, DbBackend::Sqlite).is_err(),
            "SQLite has no schemas"
        );
    }

    #[test]
    fn two_tables_of_one_name_are_refused() {
        let names = Names {
            inbox: Some("OUTBOX".into()),
            ..Names::default()
        };
        assert!(Tables::new(&names, DbBackend::MySql).is_err());
        let names = Names {
            targets: vec!["held".into()],
            ..Names::default()
        };
        assert!(Tables::new(&names, DbBackend::Postgres).is_err());
    }
}
