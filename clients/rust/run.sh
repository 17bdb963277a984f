# progenitor generates in the build script, from the 3.0 edition of the document: it takes nothing newer.
mkdir -p src
cp "$SOURCE"/Cargo.* "$SOURCE/build.rs" .
cp "$SOURCE"/src/* src/
cargo fetch --quiet --locked || exit 75
cargo build --quiet --locked
cargo run --quiet --locked
