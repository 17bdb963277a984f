/**
 * What a statement's names mean, and how moments are written and read: each connection says it itself, so that nothing
 * that a role or a database was set to changes it. `pg_catalog` is searched before this path, without being named.
 */
export const MEANING = { search_path: 'public', DateStyle: 'ISO', TimeZone: 'UTC' }
