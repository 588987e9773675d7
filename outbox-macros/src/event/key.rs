//! `key = field`, `key = a.b`, `key = method()`.

use proc_macro2::{Ident, Span, TokenStream};
use quote::{ToTokens, quote, quote_spanned};
use syn::{
    Data, DeriveInput, Fields, Index, Lit, LitStr, Member, Token,
    ext::IdentExt,
    parse::{Parse, ParseStream},
    spanned::Spanned,
    token,
};

use crate::{ctxt::Ctxt, options, root::Root, suggest};

const EXPECTED: &str = "expected a field (`key = order_id`), a path of fields (`key = order.id`), or a method without \
                        arguments (`key = order_key()`)";

/// Where the ordering key is taken from.
pub(crate) struct Key {
    /// The fields, from the outermost.
    fields: Vec<Member>,
    /// The method that is called on what the fields lead to.
    method: Option<Ident>,
}

impl Parse for Key {
    fn parse(input: ParseStream<'_>) -> syn::Result<Self> {
        if input.peek(LitStr) {
            return Err(input.error("the key is written without quotes: `key = order_id`"));
        }
        let mut key = Self {
            fields: Vec::new(),
            method: None,
        };
        if input.peek(Token![self]) {
            input.parse::<Token![self]>()?;
            input.parse::<Token![.]>()?;
        }
        loop {
            match input.call(Ident::parse_any) {
                Ok(name) if input.peek(token::Paren) => {
                    let arguments;
                    syn::parenthesized!(arguments in input);
                    if !arguments.is_empty() {
                        let error = arguments.error(EXPECTED);
                        return Err(options::give_up(&arguments, error));
                    }
                    key.method = Some(name);
                    break;
                }
                Ok(name) => key.fields.push(Member::Named(name)),
                Err(_) => key.push_indices(input)?,
            }
            if input.parse::<Option<Token![.]>>()?.is_none() {
                break;
            }
        }
        if input.is_empty() || input.peek(Token![,]) {
            Ok(key)
        } else {
            Err(input.error(EXPECTED))
        }
    }
}

impl Key {
    /// Reads `0`, or the `0.1` that arrives as one literal.
    fn push_indices(&mut self, input: ParseStream<'_>) -> syn::Result<()> {
        let literal: Lit = input
            .parse()
            .map_err(|error| syn::Error::new(error.span(), EXPECTED))?;
        let digits = match &literal {
            Lit::Int(index) => index.to_string(),
            Lit::Float(indices) => indices.to_string(),
            _ => return Err(syn::Error::new(literal.span(), EXPECTED)),
        };
        for index in digits.split('.') {
            let index = index
                .parse()
                .map_err(|_| syn::Error::new(literal.span(), EXPECTED))?;
            self.fields.push(Member::Unnamed(Index {
                index,
                span: literal.span(),
            }));
        }
        Ok(())
    }

    /// The method `key`; `None` if the key does not fit the type, which `ctxt` is told.
    pub(crate) fn expand(
        &self,
        input: &DeriveInput,
        root: &Root,
        ctxt: &Ctxt,
    ) -> Option<TokenStream> {
        let private = root.private();
        // Of one hygiene with the rest of the expression, which the compiler then points at.
        let this = Token![self](self.span());
        let value = self.value(&this, input, root, ctxt)?;
        Some(quote! {
            fn key(&#this) -> #private::Option<#private::Cow<'_, #private::str>> {
                #value
            }
        })
    }

    /// The expression of type `Option<Cow<str>>`.
    fn value(
        &self,
        this: &Token![self],
        input: &DeriveInput,
        root: &Root,
        ctxt: &Ctxt,
    ) -> Option<TokenStream> {
        match (&input.data, self.fields.as_slice()) {
            (Data::Enum(data), [first, rest @ ..]) => {
                let mut complete = true;
                for variant in data
                    .variants
                    .iter()
                    .filter(|variant| !has(&variant.fields, first))
                {
                    let (variant, field) = (&variant.ident, first.to_token_stream());
                    let message = format!(
                        "the variant `{variant}` has no field `{field}` to take the ordering key from: add it, or use \
                         a method (`key = method()`)"
                    );
                    ctxt.error(variant, message);
                    complete = false;
                }
                complete.then(|| {
                    let value = Ident::new("value", self.span());
                    // Already a reference, as long as nothing is taken from it.
                    let borrow = !rest.is_empty() || self.method.is_some();
                    let taken = self.take(&quote!(#value), rest, borrow, root);
                    let arms = data.variants.iter().map(|variant| {
                        let name = &variant.ident;
                        quote!(Self::#name { #first: #value, .. } => #taken,)
                    });
                    if data.variants.is_empty() {
                        quote!(match *#this {})
                    } else {
                        quote!(match #this { #(#arms)* })
                    }
                })
            }
            (Data::Struct(data), [first, ..]) if !has(&data.fields, first) => {
                let known: Vec<String> = data.fields.members().map(|field| name(&field)).collect();
                let message = format!(
                    "`{}` has no field `{}` to take the ordering key from: {}",
                    input.ident,
                    first.to_token_stream(),
                    suggest::ending(&name(first), &known)
                );
                ctxt.error(first, message);
                None
            }
            (_, fields) => Some(self.take(&quote!(#this), fields, true, root)),
        }
    }

    /// Takes the key from `from.fields`. All of it stands where the user wrote the key, so that a
    /// type that cannot be a key is reported there.
    fn take(
        &self,
        from: &TokenStream,
        fields: &[Member],
        borrow: bool,
        root: &Root,
    ) -> TokenStream {
        let span = self.span();
        let private = root.private_at(span);
        let borrow = borrow.then(|| Token![&](span));
        let place = fields.iter().fold(
            from.clone(),
            |place, field| quote_spanned!(span=> #place.#field),
        );
        match &self.method {
            // What the method returns does not outlive the expression.
            Some(method) => quote_spanned! {span=>
                #private::Option::map(
                    #private::OrderingKey::ordering_key(#borrow #place.#method()),
                    |key| #private::Cow::Owned(#private::Cow::into_owned(key)),
                )
            },
            None => quote_spanned!(span=> #private::OrderingKey::ordering_key(#borrow #place)),
        }
    }

    fn span(&self) -> Span {
        match (&self.method, self.fields.last()) {
            (Some(method), _) => method.span(),
            (None, Some(field)) => field.span(),
            (None, None) => Span::call_site(),
        }
    }
}

fn has(fields: &Fields, member: &Member) -> bool {
    fields.members().any(|field| field == *member)
}

fn name(member: &Member) -> String {
    member.to_token_stream().to_string()
}
