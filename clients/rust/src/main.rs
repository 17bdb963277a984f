mod client { include!(concat!(env!("OUT_DIR"), "/client.rs")); }
fn main() {}
