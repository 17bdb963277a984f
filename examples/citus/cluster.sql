-- On the coordinator, in the database `strongroom`, when all nodes are up. Can be repeated.
SELECT citus_set_coordinator_host('coordinator', 5432);
SELECT citus_add_node('worker-1', 5432);
SELECT citus_add_node('worker-2', 5432);
-- Citus sends this to all nodes.
ALTER DATABASE strongroom OWNER TO strongroom;
