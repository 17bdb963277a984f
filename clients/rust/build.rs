//! Generates the client from the 3.0 edition of the document, beside what else is built.

use std::{env, fs, path::Path};

fn main() {
    let document = env::var("OPENAPI_30").expect("OPENAPI_30 names the document");
    println!("cargo:rerun-if-changed={document}");
    let text = fs::read_to_string(document).unwrap();
    let spec: openapiv3::OpenAPI = serde_json::from_str(&text).unwrap();
    let mut settings = progenitor::GenerationSettings::default();
    settings.with_interface(progenitor::InterfaceStyle::Builder);
    let tokens = progenitor::Generator::new(&settings).generate_tokens(&spec).unwrap();
    let client = prettyplease::unparse(&syn::parse2(tokens).unwrap());
    fs::write(Path::new(&env::var("OUT_DIR").unwrap()).join("client.rs"), client).unwrap();
}
