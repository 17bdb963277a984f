# openapi-generator's plugin for Maven generates.
rm -rf generated
mvn --batch-mode --quiet --file "$SOURCE/../generator.xml" dependency:resolve-plugins || exit 75
OUTPUT="$PWD/generated" mvn --batch-mode --quiet --file "$SOURCE/../generator.xml" -Dgenerator=csharp \
  org.openapitools:openapi-generator-maven-plugin:generate
dotnet restore generated || exit 75
dotnet build --no-restore generated/src/Org.OpenAPITools
echo compiled
