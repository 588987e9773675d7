//! Collects the errors of an expansion, so that the user sees all of them at once.

use std::{cell::RefCell, fmt::Display};

use proc_macro2::TokenStream;
use quote::ToTokens;

/// The errors found so far.
#[derive(Debug, Default)]
pub(crate) struct Ctxt {
    errors: RefCell<Vec<syn::Error>>,
}

impl Ctxt {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    /// Adds an error.
    pub(crate) fn push(&self, error: syn::Error) {
        self.errors.borrow_mut().push(error);
    }

    /// Adds an error that underlines all of `tokens`.
    pub(crate) fn error(&self, tokens: impl ToTokens, message: impl Display) {
        self.push(syn::Error::new_spanned(tokens, message));
    }

    /// Unwraps a result, or keeps its error.
    pub(crate) fn ok<T>(&self, result: syn::Result<T>) -> Option<T> {
        result.map_err(|error| self.push(error)).ok()
    }

    /// Whether nothing was wrong so far.
    pub(crate) fn is_clean(&self) -> bool {
        self.errors.borrow().is_empty()
    }

    /// The errors as `compile_error!` invocations; nothing if there are none.
    #[must_use]
    pub(crate) fn into_compile_errors(self) -> TokenStream {
        self.errors
            .into_inner()
            .iter()
            .map(syn::Error::to_compile_error)
            .collect()
    }

    /// The messages, for tests.
    #[cfg(test)]
    pub(crate) fn messages(self) -> Vec<String> {
        let errors = self.errors.into_inner();
        errors.iter().map(ToString::to_string).collect()
    }
}
