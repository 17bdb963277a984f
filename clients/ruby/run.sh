# openapi-generator's plugin for Maven generates.
rm -rf generated
mvn --batch-mode --quiet --file "$SOURCE/../generator.xml" dependency:resolve-plugins || exit 75
OUTPUT="$PWD/generated" mvn --batch-mode --quiet --file "$SOURCE/../generator.xml" -Dgenerator=ruby \
  org.openapitools:openapi-generator-maven-plugin:generate
# Constants refer to the models, which are loaded on first use.
ruby -Igenerated/lib -e 'require "openapi_client"
OpenapiClient.constants.each { |name| OpenapiClient.const_get(name) }'
echo compiled
