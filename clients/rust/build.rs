//! Generates the client from the 3.0 edition of the document, beside what else is built.

use openapiv3::{ReferenceOr, StatusCode};
use std::{env, fs, path::Path};

fn main() {
    let document = env::var("OPENAPI_30").expect("OPENAPI_30 names the document");
    println!("cargo:rerun-if-changed={document}");
    let text = fs::read_to_string(document).unwrap();
    let mut spec: openapiv3::OpenAPI = serde_json::from_str(&text).unwrap();
    // progenitor takes `default` for a success as well, and an operation with two kinds of success makes it panic.
    for item in spec.paths.paths.values_mut().filter_map(|item| match item {
        ReferenceOr::Item(item) => Some(item),
        ReferenceOr::Reference { .. } => None,
    }) {
        for operation in [&mut item.get, &mut item.put, &mut item.post, &mut item.patch, &mut item.delete].into_iter().flatten() {
            if let Some(errors) = operation.responses.default.take() {
                operation.responses.responses.insert(StatusCode::Range(4), errors.clone());
                operation.responses.responses.insert(StatusCode::Range(5), errors);
            }
        }
    }
    let mut settings = progenitor::GenerationSettings::default();
    settings.with_interface(progenitor::InterfaceStyle::Builder);
    let tokens = progenitor::Generator::new(&settings).generate_tokens(&spec).unwrap();
    let client = prettyplease::unparse(&syn::parse2(tokens).unwrap());
    fs::write(Path::new(&env::var("OUT_DIR").unwrap()).join("client.rs"), client).unwrap();
}
