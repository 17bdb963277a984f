//! Generates the client from the 3.0 edition of the document, beside what else is built.

use openapiv3::{ReferenceOr, StatusCode};
use std::{env, fs, path::Path};

fn main() {
    let document = env::var("OPENAPI_30").expect("OPENAPI_30 names the document");
    println!("cargo:rerun-if-changed={document}");
    let text = fs::read_to_string(document).unwrap();
    let mut spec: openapiv3::OpenAPI = serde_json::from_str(&text).unwrap();
    // progenitor takes `default` for a success, too, and panics over two kinds of success. So the errors of `default` are
    // listed by their status, where the operation has none of its own.
    for (_, item) in &mut spec.paths.paths {
        let ReferenceOr::Item(item) = item else { continue };
        let methods = [&mut item.get, &mut item.put, &mut item.post, &mut item.patch, &mut item.delete];
        for operation in methods.into_iter().flatten() {
            let Some(errors) = operation.responses.default.take() else { continue };
            for status in [400, 401, 403, 404, 409, 413, 415, 422, 429, 500, 503] {
                operation.responses.responses.entry(StatusCode::Code(status)).or_insert_with(|| errors.clone());
            }
        }
    }
    let mut settings = progenitor::GenerationSettings::default();
    settings.with_interface(progenitor::InterfaceStyle::Builder);
    let tokens = progenitor::Generator::new(&settings).generate_tokens(&spec).unwrap();
    let client = prettyplease::unparse(&syn::parse2(tokens).unwrap());
    fs::write(Path::new(&env::var("OUT_DIR").unwrap()).join("client.rs"), client).unwrap();
}
