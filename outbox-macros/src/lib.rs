//! The macros of `outbox-core`, which re-exports them: use that crate.
//!
//! Each macro reads attributes (`attr`), checks what they are written on (`check`) and writes the
//! code (`expand`). Mistakes are collected and reported together, each where it was made; the code
//! is written all the same, so that one mistake does not bring others with it. The code names
//! nothing but `::outbox_core::__private` and `::core`.

mod ctxt;
mod duration;
mod event;
mod handler;
mod options;
mod root;
mod suggest;
mod symbol;
mod tokens;

use proc_macro::TokenStream;

#[doc = include_str!("../docs/event.md")]
#[proc_macro_derive(IntegrationEvent, attributes(event))]
pub fn derive_integration_event(input: TokenStream) -> TokenStream {
    debug(event::derive(input.into()))
}

#[doc = include_str!("../docs/handler.md")]
#[proc_macro_attribute]
pub fn handler(options: TokenStream, item: TokenStream) -> TokenStream {
    debug(handler::handler(options.into(), item.into()))
}

fn debug(expansion: proc_macro2::TokenStream) -> TokenStream {
    if std::env::var_os("OUTBOX_MACROS_DEBUG").is_some_and(|value| value == "1") {
        eprintln!("{expansion}\n");
    }
    expansion.into()
}

#[cfg(test)]
mod tests;
