/**
 * What a statement's names mean, and how moments are written and read: each connection says it itself, so that nothing
 * that a role or a database was set to changes it. `pg_catalog` is searched before this path, without being named.
 */
export const MEANING = { search_path: 'public', DateStyle: 'ISO', TimeZone: 'UTC' }

/**
 * How connections plan: by index, where there is one. A small table looks cheaper to read through, until its few rows
 * have been changed thousands of times since it was cleaned up: a write was three times as much work after 20 seconds
 * of them. What has no index is still read through, at a cost that is then said to be enormous: nothing is compiled for
 * it, and no other processes are called in.
 */
export const BY_INDEX = { enable_seqscan: 'off', jit: 'off', max_parallel_workers_per_gather: '0' }

/**
 * How those for lists plan besides: a list walks an index in its order. A page in the middle of a table looks to the
 * planner as if reading and sorting all of it were cheaper, which it is for one page and not for a service.
 */
export const WALKING = { enable_bitmapscan: 'off' }
