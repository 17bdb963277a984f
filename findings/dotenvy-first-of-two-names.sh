#!/usr/bin/env bash
# dotenvy 0.15.7 (Rust): of a name that stands twice in a file, the first value counts, not the last one.
#
# dotenv (npm), python-dotenv, godotenv, Compose, systemd and every shell take the last one. dotenvy sets the variables
# one by one and never overwrites one that is set, so its own first assignment stops the second. Only
# `dotenv_override` has the other result; the iterator gives both in their order.
# Output seen: dotenv: first, dotenv_override: last
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
mkdir -p "$folder/src"
cd "$folder"
cat > Cargo.toml <<'TOML'
[package]
name = "sample"
version = "0.0.0"
edition = "2021"

[dependencies]
dotenvy = "=0.15.7"
TOML
cat > src/main.rs <<'RUST'
fn main() {
    dotenvy::from_filename("sample.env").unwrap();
    println!("dotenv: {}", std::env::var("SAMPLE_NAME").unwrap());
    std::env::remove_var("SAMPLE_NAME");
    dotenvy::from_filename_override("sample.env").unwrap();
    println!("dotenv_override: {}", std::env::var("SAMPLE_NAME").unwrap());
}
RUST
printf '%s\n' 'SAMPLE_NAME=first' 'SAMPLE_NAME=last' > sample.env
seen=$(CARGO_TARGET_DIR="$folder/target" cargo run --quiet)
echo "$seen"
[ "$seen" = $'dotenv: first\ndotenv_override: last' ]
