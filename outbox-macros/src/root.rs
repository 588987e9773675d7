//! The path of the core crate: `::outbox_core`, or what `crate = ".."` says.

use std::path::Path as FilePath;

use proc_macro2::{Ident, Span, TokenStream};
use quote::quote_spanned;
use syn::{LitStr, Path, parse::ParseStream};

use crate::symbol::{CORE, CORE_PACKAGE, CRATE};

/// Where the core crate is found.
#[derive(Debug, Clone, Default)]
pub(crate) struct Root {
    path: Option<Path>,
}

impl Root {
    /// Reads the value of `crate = ..`: a path, in quotes or (for `$crate::..`) without.
    pub(crate) fn parse(input: ParseStream<'_>) -> syn::Result<Self> {
        let path = if input.peek(LitStr) {
            let literal: LitStr = input.parse()?;
            literal.parse_with(Path::parse_mod_style).map_err(|_| {
                syn::Error::new(
                    literal.span(),
                    "expected a path, as in `crate = \"facade::outbox_core\"`",
                )
            })?
        } else {
            input.call(Path::parse_mod_style)?
        };
        Ok(Self { path: Some(path) })
    }

    /// The module that the expansions take everything from.
    pub(crate) fn private(&self) -> TokenStream {
        self.private_at(Span::call_site())
    }

    /// As [`private`](Self::private), standing where the user wrote something, so that what the
    /// compiler says about it is said there.
    pub(crate) fn private_at(&self, span: Span) -> TokenStream {
        let core = Ident::new(CORE, span);
        match &self.path {
            Some(path) => quote_spanned!(span=> #path::__private),
            None => quote_spanned!(span=> ::#core::__private),
        }
    }

    /// Refuses to expand to `::outbox_core` where the manifest shows that there is no such
    /// dependency: the compiler's own error could not name the option that is missing.
    pub(crate) fn check(&self, attribute: &str) -> syn::Result<()> {
        if self.path.is_some() || !is_absent() {
            return Ok(());
        }
        Err(syn::Error::new(
            Span::call_site(),
            format!(
                "`{CORE_PACKAGE}` is not a dependency of this package under its own name: add it, or say where it is \
                 found with `#[{attribute}({CRATE} = \"path::to::{CORE}\")]`"
            ),
        ))
    }
}

/// Whether the package being compiled certainly has no dependency called `outbox-core`.
fn is_absent() -> bool {
    let own_name = std::env::var("CARGO_PKG_NAME");
    if own_name.is_ok_and(|name| name == CORE_PACKAGE) {
        return false;
    }
    let Some(directory) = std::env::var_os("CARGO_MANIFEST_DIR") else {
        return false;
    };
    match std::fs::read_to_string(FilePath::new(&directory).join("Cargo.toml")) {
        Ok(manifest) => !may_depend(&manifest),
        Err(_) => false,
    }
}

/// Whether the core crate's name stands anywhere in the manifest, other than in a comment, in a
/// path, or as the package behind another name.
fn may_depend(manifest: &str) -> bool {
    manifest
        .lines()
        .filter(|line| !line.trim_start().starts_with('#'))
        .any(|line| {
            [CORE_PACKAGE, CORE].iter().any(|name| {
                line.match_indices(name).any(|(start, name)| {
                    let (before, after) = (&line[..start], &line[start + name.len()..]);
                    let is_part = |c: char| c.is_alphanumeric() || matches!(c, '-' | '_' | '/');
                    let whole = !before.ends_with(is_part) && !after.starts_with(is_part);
                    let unquoted = before.trim_end_matches(['"', '\'']).trim_end();
                    let value = unquoted.strip_suffix('=').map(str::trim_end);
                    whole && !value.is_some_and(|key| key.ends_with("package"))
                })
            })
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_the_dependency_in_each_spelling() {
        for manifest in [
            "[dependencies]\noutbox-core = \"0.1\"",
            "[dependencies]\noutbox-core.workspace = true",
            "[dependencies]\n\"outbox-core\" = { path = \"..\" }",
            "[dependencies.outbox-core]\nversion = \"0.1\"",
            "[target.'cfg(unix)'.dependencies.'outbox-core']",
            "dependencies = { outbox-core = \"0.1\" }",
            "[dependencies]\noutbox_core = { package = \"outbox-core\", version = \"0.1\" }",
        ] {
            assert!(may_depend(manifest), "{manifest}");
        }
    }

    #[test]
    fn a_rename_or_a_facade_is_not_the_dependency() {
        for manifest in [
            "[dependencies]\nserde = \"1\"",
            "[dependencies]\n# outbox-core = \"0.1\"",
            "[dependencies]\nevents = { package = \"outbox-core\", path = \"../outbox-core\" }",
            "[dependencies.events]\npackage='outbox-core'\nversion = \"0.1\"",
            "[dependencies]\nmy-outbox-core = \"0.1\"\noutbox-core-ext = \"1\"",
        ] {
            assert!(!may_depend(manifest), "{manifest}");
        }
    }
}
