//! Small questions about types and tokens.

use proc_macro2::{TokenStream, TokenTree};
use quote::ToTokens;
use syn::{GenericArgument, PathArguments, PathSegment, Type};

/// The type itself, without the invisible groups that `macro_rules` puts around it and without
/// parentheses.
pub(crate) fn peel(mut ty: &Type) -> &Type {
    loop {
        ty = match ty {
            Type::Group(group) => &group.elem,
            Type::Paren(paren) => &paren.elem,
            _ => return ty,
        };
    }
}

/// The last segment of a type that is a path.
pub(crate) fn last_segment(ty: &Type) -> Option<&PathSegment> {
    match peel(ty) {
        Type::Path(path) => path.path.segments.last(),
        _ => None,
    }
}

/// Whether the type is a path that ends in `name`.
pub(crate) fn is_named(ty: &Type, name: &str) -> bool {
    last_segment(ty).is_some_and(|segment| segment.ident == name)
}

/// The `T` of `name<T>`.
pub(crate) fn only_argument<'a>(ty: &'a Type, name: &str) -> Option<&'a Type> {
    let segment = last_segment(ty).filter(|segment| segment.ident == name)?;
    let PathArguments::AngleBracketed(arguments) = &segment.arguments else {
        return None;
    };
    let mut arguments = arguments.args.iter();
    match (arguments.next(), arguments.next()) {
        (Some(GenericArgument::Type(ty)), None) => Some(ty),
        _ => None,
    }
}

/// Whether a lifetime other than `'static` stands anywhere in the type.
pub(crate) fn has_lifetime(ty: &Type) -> bool {
    any(ty.to_token_stream(), &mut |tokens, token| {
        let quote = matches!(token, TokenTree::Punct(punct) if punct.as_char() == '\'');
        let name = tokens.first().map(ToString::to_string);
        quote && name.is_some_and(|name| name != "static")
    })
}

/// Whether the type holds an `impl Trait`.
pub(crate) fn has_impl_trait(ty: &Type) -> bool {
    any(
        ty.to_token_stream(),
        &mut |_, token| matches!(token, TokenTree::Ident(ident) if ident == "impl"),
    )
}

/// Whether `test` holds for any token; it is given the tokens behind as well.
fn any(tokens: TokenStream, test: &mut impl FnMut(&[TokenTree], &TokenTree) -> bool) -> bool {
    let tokens: Vec<TokenTree> = tokens.into_iter().collect();
    (0..tokens.len()).any(|index| match &tokens[index] {
        TokenTree::Group(group) => any(group.stream(), test),
        token => test(&tokens[index + 1..], token),
    })
}

#[cfg(test)]
mod tests {
    use quote::quote;

    use super::*;

    fn ty(tokens: TokenStream) -> Type {
        match syn::parse2(tokens) {
            Ok(ty) => ty,
            Err(error) => unreachable!("{error}"),
        }
    }

    #[test]
    fn finds_what_hides_in_types() {
        assert!(has_lifetime(&ty(quote!(Changed<Cow<'a, str>>))));
        assert!(has_lifetime(&ty(quote!((A, B<'_>)))));
        assert!(!has_lifetime(&ty(quote!(Cow<'static, str>))));
        assert!(has_impl_trait(&ty(quote!(Envelope<impl Event>))));
        assert!(!has_impl_trait(&ty(quote!(implicit::Type))));
    }

    #[test]
    fn sees_through_paths_and_parentheses() {
        let envelope = ty(quote!((outbox_core::Envelope<OrderPlaced>)));
        assert!(is_named(&envelope, "Envelope"));
        assert!(only_argument(&envelope, "Envelope").is_some());
        assert!(only_argument(&ty(quote!(Envelope<A, B>)), "Envelope").is_none());
        assert!(only_argument(&ty(quote!(Envelope)), "Envelope").is_none());
    }
}
