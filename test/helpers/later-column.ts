// Declares a column of `teams` that no release has. A test imports this file first, in a process of its own, because
// the service reads the declarations when it is loaded.
import { bigint, boolean, char, pgTable, varchar } from 'drizzle-orm/pg-core'
import { bytea } from '../../src/db/columns.ts'
import { AUTHENTICATED } from '../../src/db/rows/authenticated.ts'

/** The columns that the MAC of a team needs. */
const teams = pgTable('teams', {
  id: char({ length: 26 }),
  organization_id: char({ length: 26 }),
  slug: varchar(),
  is_of_place: boolean(),
  mac: bytea(),
  seats: bigint({ mode: 'number' })
})

const { teams: declared } = AUTHENTICATED
Object.assign(AUTHENTICATED, {
  teams: { ...declared, table: teams, fields: [...declared.fields, 'seats'], later: [...declared.later, 'seats'] }
})
