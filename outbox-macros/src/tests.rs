//! No input makes a macro panic, and what comes out can be read.

use proc_macro2::{Delimiter, Group, TokenStream, TokenTree};
use quote::quote;

use crate::{event, handler};

/// `tokens` with one token left out at a time, at any depth, and every prefix of it.
fn mutilated(tokens: &TokenStream) -> Vec<TokenStream> {
    let tokens: Vec<TokenTree> = tokens.clone().into_iter().collect();
    let mut all = Vec::new();
    for index in 0..tokens.len() {
        let (before, after) = (&tokens[..index], &tokens[index + 1..]);
        all.push(before.iter().cloned().collect());
        all.push(before.iter().chain(after).cloned().collect());
        if let TokenTree::Group(group) = &tokens[index] {
            for inner in mutilated(&group.stream())
                .into_iter()
                .chain([TokenStream::new()])
            {
                let group = TokenTree::Group(Group::new(group.delimiter(), inner));
                all.push(
                    before
                        .iter()
                        .chain([&group])
                        .chain(after)
                        .cloned()
                        .collect(),
                );
            }
        }
    }
    all
}

fn reads(expansion: TokenStream) -> bool {
    syn::parse2::<syn::File>(expansion).is_ok()
}

fn events() -> Vec<TokenStream> {
    vec![
        quote! {
            #[event(subject = "a.b", type = "t", version = 2, key = a.0.b(), upcast_from = Old<T, u8>, crate = "x::y")]
            #[serde(tag = "t")]
            pub(crate) struct Event<T: Clone = u8, const N: usize = 3> where T: Copy { a: (T,), r#type: [u8; N] }
        },
        quote! {
            #[event(subject = "a.b", key = id, crate = $crate::core)]
            enum Event { A { id: u8 }, #[serde(skip)] B { id: String, more: u8 } }
        },
        quote!(
            #[event(subject = "a", key = 0.1)]
            struct Event((u8, u8), &'static str);
        ),
        quote!(#[event(subject = "a")] union Event<'a> { a: u8 }),
    ]
}

fn options() -> TokenStream {
    quote! {
        consumer = "c", max_attempts = 5, max_crashes = 3, backoff = exponential("1s", max = "5m"),
        concurrency = 16, timeout = "30s", state = App<u8, u8>, crate = "x::y"
    }
}

fn function() -> TokenStream {
    quote! {
        #[cfg(test)]
        pub(crate) async fn handles<T>(
            event: Envelope<E>,
            tx: &Tx,
            State(app): State<App>,
            #[cfg(a)] cx: &mut Context,
            other: Other<'_>,
        ) -> Result<(), E> where T: Copy {
            Ok(())
        }
    }
}

#[test]
fn derives_of_anything() {
    for event in events() {
        assert!(reads(event::derive(event.clone())));
        for input in mutilated(&event) {
            let text = input.to_string();
            assert!(reads(event::derive(input)), "{text}");
        }
    }
}

#[test]
fn handlers_of_anything() {
    assert!(reads(handler::handler(options(), function())));
    for options in mutilated(&options()) {
        let text = options.to_string();
        assert!(reads(handler::handler(options, function())), "{text}");
    }
    // The item itself is handed through, readable or not.
    for item in mutilated(&function()) {
        let added = handler::handler(options(), item.clone())
            .into_iter()
            .skip(item.into_iter().count());
        assert!(reads(added.collect()));
    }
}

#[test]
fn the_function_is_handed_through_untouched() {
    let function = function();
    let count = function.clone().into_iter().count();
    let kept: TokenStream = handler::handler(options(), function.clone())
        .into_iter()
        .take(count)
        .collect();
    assert_eq!(kept.to_string(), function.to_string());
}

/// `macro_rules` puts what it captured into groups without delimiters.
#[test]
fn invisible_groups_are_seen_through() {
    let group = |tokens| TokenTree::Group(Group::new(Delimiter::None, tokens));
    let (subject, version) = (group(quote!("a.b")), group(quote!(2)));
    let (key, older) = (group(quote!(id)), group(quote!(Old)));
    let derived = event::derive(quote! {
        #[event(subject = #subject, version = #version, key = #key, upcast_from = #older)]
        struct Event { id: u8 }
    });
    assert!(!derived.to_string().contains("compile_error"), "{derived}");

    let (consumer, attempts) = (group(quote!("c")), group(quote!(5)));
    let (event, tx, result) = (
        group(quote!(Envelope<E>)),
        group(quote!(&Tx)),
        group(quote!(Result<(), E>)),
    );
    let expanded = handler::handler(
        quote!(consumer = #consumer, max_attempts = #attempts),
        quote!(async fn handles(event: #event, tx: #tx) -> #result { Ok(()) }),
    );
    assert!(
        !expanded.to_string().contains("compile_error"),
        "{expanded}"
    );
    assert!(expanded.to_string().contains("Tx ="), "{expanded}");

    let unit = group(quote!(()));
    let expanded = handler::handler(
        quote!(consumer = "c"),
        quote!(async fn handles(event: E) -> #unit {}),
    );
    assert!(expanded.to_string().contains("compile_error"), "{expanded}");
}
