/**
 * What a statement's names mean, and how moments are written and read: each connection says it itself, so that nothing
 * that a role or a database was set to changes it. `pg_catalog` is searched before this path, without being named.
 */
export const MEANING = { search_path: 'public', DateStyle: 'ISO', TimeZone: 'UTC' }

/**
 * How connections for lists plan: a list walks an index in its order. A page in the middle of a table looks to the planner
 * as if reading and sorting all of it were cheaper, which it is for one page and not for a service.
 */
export const WALKING = { enable_seqscan: 'off', enable_bitmapscan: 'off' }
