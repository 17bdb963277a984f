# openapi-generator's plugin for Maven generates.
rm -rf generated
mvn --batch-mode --quiet --file "$SOURCE/../generator.xml" dependency:resolve-plugins || exit 75
OUTPUT="$PWD/generated" mvn --batch-mode --quiet --file "$SOURCE/../generator.xml" -Dgenerator=php \
  org.openapitools:openapi-generator-maven-plugin:generate
php -d error_reporting=-1 -d display_errors=1 "$SOURCE/load.php" generated/lib
echo compiled
