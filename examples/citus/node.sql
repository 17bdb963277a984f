-- Once on each node, in the database `strongroom`: the role of the service, and the passwords with which the node
-- connects to the others, as the superuser and as this role.
\getenv postgres POSTGRES_PASSWORD
\getenv strongroom STRONGROOM_PASSWORD
CREATE ROLE strongroom LOGIN PASSWORD :'strongroom';
INSERT INTO pg_dist_authinfo (nodeid, rolename, authinfo) VALUES
  (0, 'postgres', 'password=' || :'postgres'), (0, 'strongroom', 'password=' || :'strongroom');
