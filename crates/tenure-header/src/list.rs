//! The list of functions, read from the macro call `functions! { ... }`.

use quote::ToTokens;
use syn::parse::{Parse, ParseStream};
use syn::punctuated::Punctuated;
use syn::{Attribute, Expr, FnArg, Ident, Item, Lit, Meta, ReturnType, Token};

/// One function of the table, without the prefix that its symbol has.
pub(crate) struct Function {
    pub(crate) name: String,
    /// The lines of its documentation.
    pub(crate) docs: Vec<String>,
    /// Its parameters as Rust text: `a: u32, b: *mut c_void`.
    parameters: String,
    /// What it returns, as Rust text.
    result: String,
}

impl Function {
    /// A declaration that cbindgen understands; the body is never compiled.
    pub(crate) fn declaration(&self) -> String {
        let mut out = String::new();
        for line in &self.docs {
            out.push_str(&format!("///{line}\n"));
        }
        out.push_str(&format!(
            "#[unsafe(no_mangle)]\npub unsafe extern \"C\" fn tenure_{}({}) -> {} {{ loop {{}} }}\n\n",
            self.name, self.parameters, self.result
        ));
        out
    }

    /// Its member of the table.
    pub(crate) fn member(&self) -> String {
        format!("    pub {}: unsafe extern \"C\" fn({}) -> {},\n", self.name, self.parameters, self.result)
    }
}

struct List(Vec<Function>);

impl Parse for List {
    fn parse(input: ParseStream<'_>) -> syn::Result<Self> {
        let mut functions = Vec::new();
        while !input.is_empty() {
            let docs = input.call(Attribute::parse_outer)?.iter().filter_map(doc_line).collect();
            input.parse::<Token![fn]>()?;
            let name: Ident = input.parse()?;
            let inside;
            syn::parenthesized!(inside in input);
            let parameters = Punctuated::<FnArg, Token![,]>::parse_terminated(&inside)?;
            let ReturnType::Type(_, result) = input.parse::<ReturnType>()? else {
                return Err(input.error("each function of the table returns something"));
            };
            input.parse::<Token![;]>()?;
            functions.push(Function {
                name: name.to_string(),
                docs,
                parameters: parameters.to_token_stream().to_string(),
                result: result.to_token_stream().to_string(),
            });
        }
        Ok(Self(functions))
    }
}

fn doc_line(attribute: &Attribute) -> Option<String> {
    let Meta::NameValue(pair) = &attribute.meta else {
        return None;
    };
    let Expr::Lit(literal) = &pair.value else {
        return None;
    };
    match &literal.lit {
        Lit::Str(text) if pair.path.is_ident("doc") => Some(text.value()),
        _ => None,
    }
}

/// The functions that the text of `functions.rs` lists, in order.
pub(crate) fn read(text: &str) -> Result<Vec<Function>, String> {
    let file = syn::parse_file(text).map_err(|why| format!("functions.rs does not parse: {why}"))?;
    let call = file.items.iter().find_map(|item| match item {
        Item::Macro(call) if call.ident.is_none() && call.mac.path.is_ident("functions") => Some(&call.mac),
        _ => None,
    });
    let call = call.ok_or("functions.rs has no `functions! { ... }`")?;
    let List(functions) = call.parse_body().map_err(|why| format!("the list in functions.rs does not parse: {why}"))?;
    Ok(functions)
}

#[cfg(test)]
mod tests {
    use super::read;

    #[test]
    fn reads_names_documentation_and_types() {
        let text = "functions! {\n /// Does a thing.\n fn thing(a: u32, out: *mut u64,) -> tenure_status;\n fn bare() -> u32; }";
        let functions = read(text).unwrap_or_default();
        assert_eq!(functions.len(), 2);
        assert_eq!(functions[0].docs, [" Does a thing."]);
        assert!(functions[0].declaration().contains("fn tenure_thing(a : u32 , out : * mut u64 ,) -> tenure_status"));
        assert!(functions[1].member().contains("pub bare: unsafe extern \"C\" fn() -> u32,"));
    }

    #[test]
    fn says_when_there_is_no_list() {
        assert!(read("fn x() {}").is_err());
        assert!(read("functions! { fn x(); }").is_err());
    }
}
