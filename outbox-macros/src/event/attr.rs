//! What `#[event(..)]` says.

use proc_macro2::Ident;
use syn::{
    Attribute, Data, DeriveInput, LitStr, Meta, Type,
    parse::{ParseStream, Parser},
};

use super::{check, key::Key};
use crate::{
    ctxt::Ctxt,
    options::{self, Options},
    root::Root,
    symbol::{CRATE, EVENT, EVENT_OPTIONS, KEY, SUBJECT, TYPE, UPCAST_FROM, VERSION},
};

/// The options, already checked; what was wrong is missing or has a stand-in.
#[derive(Default)]
pub(crate) struct EventAttr {
    pub(crate) subject: String,
    /// `type = ..`; the subject if it is not given.
    pub(crate) event_type: Option<String>,
    /// 1 if it is not given.
    pub(crate) version: Option<u16>,
    pub(crate) key: Option<Key>,
    pub(crate) upcast_from: Option<Type>,
    pub(crate) root: Root,
}

impl EventAttr {
    /// Reads all `#[event(..)]` of the type as if they were one.
    pub(crate) fn read(input: &DeriveInput, ctxt: &Ctxt) -> Self {
        let mut this = Self::default();
        let mut subject = None;
        let mut options = Options::new(EVENT_OPTIONS);
        let mut place = None;
        let mut stopped = false;
        for attr in input
            .attrs
            .iter()
            .filter(|attr| attr.path().is_ident(EVENT))
        {
            place.get_or_insert(attr.path());
            let Meta::List(list) = &attr.meta else {
                ctxt.error(attr, "expected `#[event(subject = \"..\")]`");
                stopped = true;
                continue;
            };
            let parser = |stream: ParseStream<'_>| {
                options.parse(stream, ctxt, |name, key, stream| {
                    // Given, if wrongly: one error is enough.
                    stopped |= name == SUBJECT;
                    this.set(name, key, stream, &mut subject)
                });
                Ok(())
            };
            ctxt.ok(parser.parse2(list.tokens.clone()));
        }
        match subject {
            Some(subject) => this.subject = subject,
            None if stopped => {}
            None => {
                let message = "an event needs a subject: `#[event(subject = \"..\")]`";
                match place {
                    Some(path) => ctxt.error(path, message),
                    None => ctxt.error(&input.ident, message),
                }
            }
        }
        refuse_inside(input, ctxt);
        this
    }

    fn set(
        &mut self,
        name: &str,
        key: &Ident,
        input: ParseStream<'_>,
        subject: &mut Option<String>,
    ) -> syn::Result<()> {
        match name {
            SUBJECT => *subject = Some(checked(&options::string(input)?, check::subject)?),
            TYPE => self.event_type = Some(checked(&options::string(input)?, check::event_type)?),
            VERSION => {
                self.version = u16::try_from(options::positive(input, u16::MAX.into())?).ok()
            }
            KEY => self.key = Some(input.parse()?),
            UPCAST_FROM => self.upcast_from = Some(input.parse()?),
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

    /// The stable name.
    pub(crate) fn event_type(&self) -> &str {
        self.event_type.as_deref().unwrap_or(&self.subject)
    }

    /// The version of the payload.
    pub(crate) fn version(&self) -> u16 {
        self.version.unwrap_or(1)
    }
}

fn checked(literal: &LitStr, rule: fn(&str) -> Result<(), String>) -> syn::Result<String> {
    let value = literal.value();
    match rule(&value) {
        Ok(()) => Ok(value),
        Err(why) => Err(syn::Error::new(literal.span(), why)),
    }
}

/// Refuses `#[event]` on variants and fields.
fn refuse_inside(input: &DeriveInput, ctxt: &Ctxt) {
    let refuse = |attrs: &[Attribute], what: &str| {
        for attr in attrs.iter().filter(|attr| attr.path().is_ident(EVENT)) {
            ctxt.error(
                attr,
                format!("`#[event(..)]` belongs on the type, not on {what}"),
            );
        }
    };
    match &input.data {
        Data::Struct(data) => {
            data.fields
                .iter()
                .for_each(|field| refuse(&field.attrs, "a field: name it with `key = ..`"));
        }
        Data::Enum(data) => {
            for variant in &data.variants {
                refuse(&variant.attrs, "a variant: all variants share one subject");
                variant
                    .fields
                    .iter()
                    .for_each(|field| refuse(&field.attrs, "a field: name it with `key = ..`"));
            }
        }
        Data::Union(_) => {}
    }
}
