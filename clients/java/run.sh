# openapi-generator's plugin for Maven generates, with the HTTP client of Java itself.
rm -rf target
mkdir -p src/main/java
cp "$SOURCE/pom.xml" .
cp "$SOURCE/Scenario.java" src/main/java/
mvn --batch-mode --quiet dependency:resolve-plugins dependency:resolve || exit 75
mvn --batch-mode --quiet compile exec:java
