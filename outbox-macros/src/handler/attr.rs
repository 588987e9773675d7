//! What `#[handler(..)]` says.

use proc_macro2::{Ident, Span, TokenStream};
use quote::quote;
use syn::{
    Type,
    parse::{ParseStream, Parser},
};

use super::{backoff::Backoff, shape::Shape};
use crate::{
    ctxt::Ctxt,
    duration::Written,
    options::{self, Options},
    root::Root,
    symbol::{
        BACKOFF, BATCH, CONCURRENCY, CONSUMER, CRATE, HANDLER_OPTIONS, LINGER, MAX_ATTEMPTS,
        MAX_CRASHES, STATE, TIMEOUT,
    },
};

/// The longest name of a consumer in bytes.
const LONGEST: usize = 64;

/// The options, already checked; what was wrong is missing.
#[derive(Default)]
pub(crate) struct HandlerAttr {
    consumer: String,
    max_attempts: Option<u32>,
    max_crashes: Option<u32>,
    backoff: Option<Backoff>,
    concurrency: Option<u32>,
    timeout: Option<Written>,
    batch: Option<u32>,
    linger: Option<Written>,
    /// The options that are for handlers of batches.
    of_batches: Vec<Ident>,
    pub(crate) state: Option<Type>,
    pub(crate) root: Root,
}

impl HandlerAttr {
    pub(crate) fn read(tokens: TokenStream, ctxt: &Ctxt) -> Self {
        let mut this = Self::default();
        let mut named = false;
        let parser = |input: ParseStream<'_>| {
            Options::new(HANDLER_OPTIONS).parse(input, ctxt, |name, key, input| {
                named |= name == CONSUMER;
                this.set(name, key, input)
            });
            Ok(())
        };
        ctxt.ok(parser.parse2(tokens));
        if !named {
            ctxt.push(syn::Error::new(
                Span::call_site(),
                "a handler needs `consumer = \"..\"`: it names the durable consumer and the inbox's records, and is \
                 not taken from the function, since renaming that would handle every message again",
            ));
        }
        this
    }

    fn set(&mut self, name: &str, key: &Ident, input: ParseStream<'_>) -> syn::Result<()> {
        match name {
            CONSUMER => self.consumer = consumer(input)?,
            MAX_ATTEMPTS => self.max_attempts = Some(options::positive(input, u32::MAX)?),
            MAX_CRASHES => self.max_crashes = Some(options::positive(input, u32::MAX)?),
            BACKOFF => self.backoff = Some(input.parse()?),
            CONCURRENCY => self.concurrency = Some(options::positive(input, u32::MAX)?),
            TIMEOUT => self.timeout = Some(Written::read_positive(&options::duration(input)?)?),
            BATCH => {
                self.batch = Some(options::positive(input, u32::MAX)?);
                self.of_batches.push(key.clone());
            }
            LINGER => {
                self.linger = Some(Written::read(&options::duration(input)?)?);
                self.of_batches.push(key.clone());
            }
            STATE => self.state = Some(input.parse()?),
            CRATE => self.root = Root::parse(input)?,
            _ => {
                return Err(syn::Error::new(
                    key.span(),
                    format!("unknown option `{name}`"),
                ));
            }
        }
        Ok(())
    }

    /// Whether the options fit the arguments.
    pub(crate) fn check(&self, shape: &Shape<'_>, ctxt: &Ctxt) {
        if shape.takes_batches {
            return;
        }
        for option in &self.of_batches {
            ctxt.error(
                option,
                format!("`{option}` is for handlers that take several events: `Vec<..>` as the first argument"),
            );
        }
    }

    /// The constant of type `HandlerOptions`.
    pub(crate) fn expand(&self) -> TokenStream {
        let private = self.root.private();
        let consumer = &self.consumer;
        let max_attempts = self.max_attempts.iter();
        let max_crashes = self.max_crashes.iter();
        let concurrency = self.concurrency.iter();
        let timeout = self
            .timeout
            .iter()
            .map(|timeout| timeout.expand(&self.root));
        let batch = self.batch.iter();
        let linger = self.linger.iter().map(|linger| linger.expand(&self.root));
        let backoff = self
            .backoff
            .iter()
            .map(|backoff| backoff.expand(&self.root));
        quote! {
            #private::HandlerOptions::new(#consumer)
                #(.max_attempts(#max_attempts))*
                #(.max_crashes(#max_crashes))*
                #(.backoff(#backoff))*
                #(.concurrency(#concurrency))*
                #(.timeout(#timeout))*
                #(.batch(#batch))*
                #(.linger(#linger))*
        }
    }
}

fn consumer(input: ParseStream<'_>) -> syn::Result<String> {
    let literal = options::string(input)?;
    let name = literal.value();
    let refuse = |why: &str| {
        Err(syn::Error::new(
            literal.span(),
            format!("this consumer name is not allowed: {why}"),
        ))
    };
    if name.is_empty() {
        return refuse("it is empty");
    }
    if !name
        .bytes()
        .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'))
    {
        return refuse("use letters, digits, `-` and `_`");
    }
    if name.len() > LONGEST {
        return refuse(&format!(
            "it has {} bytes, and {LONGEST} is the limit",
            name.len()
        ));
    }
    Ok(name)
}
