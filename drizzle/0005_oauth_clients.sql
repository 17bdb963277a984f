-- Clients that are there from the start: the command line tool of the field, and this service's own Swagger UI.
INSERT INTO "oauth_clients" ("id", "name", "redirect_uris", "is_first_party") VALUES
	('dotenv-cli', 'Command line', ARRAY['http://localhost/callback', 'http://127.0.0.1/callback'], true),
	('swagger-ui', 'API documentation', ARRAY['/docs/static/oauth2-redirect.html'], true);
