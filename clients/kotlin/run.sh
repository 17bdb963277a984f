# openapi-generator's plugin for Maven generates, with OkHttp and Moshi.
rm -rf target
cp "$SOURCE/pom.xml" .
mvn --batch-mode --quiet dependency:resolve-plugins dependency:resolve || exit 75
# A daemon of the compiler would stay.
mvn --batch-mode --quiet -Dkotlin.compiler.daemon=false compile
echo compiled
