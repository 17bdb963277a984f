import type { Ability } from '../../../schemas/scopes.ts'
import { hashToken, mintApiToken, tokenPrefix } from '../../crypto/bearer.ts'
import { transaction, type Database } from '../../db/database.ts'
import { eventOf, operatorOf, recordEvent } from '../../repositories/audit/audit.ts'
import { findOrganization, listAllOrganizations } from '../../repositories/levels/organizations.ts'
import { lockPlan } from '../../repositories/billing/plans.ts'
import {
  createToken, deleteTokens, findOrganizationOfToken, findSlices, listTokens, findReachedTokenLimit
} from '../../repositories/people/tokens.ts'
import { StartError } from '../common/open.ts'

/** Creates an API token of an organization (id or slug), without an owner. Returns its value. */
export async function addToken (
  { db: handle }: Database, { organization, name, abilities }: {
    organization: string
    name: string
    abilities: Ability[]
  }
): Promise<string> {
  return transaction(handle, async (db) => {
    const { id } = await findOrganization(db, organization) ?? missing(`There is no organization ${organization}`)
    // Lock the organization: a concurrent deletion would leave the token behind.
    await lockPlan(db, id) ?? missing(`There is no organization ${organization}`)
    const limit = await findReachedTokenLimit(db, id, null)
    if (limit !== undefined) throw new StartError(`The organization has reached its limit of ${limit} tokens: revoke one first`)
    const token = mintApiToken(id)
    const made = await createToken(db, {
      organization_id: id,
      name,
      token_hash: hashToken(token),
      token_prefix: tokenPrefix(token),
      abilities,
      slices: [],
      expires_at: null
    })
    await recordEvent(db, operatorOf(id), eventOf('api-token.create', made.id, { abilities: abilities.join(' ') }))
    return token
  })
}

/** Every API token as one line: id, organization, prefix, name, abilities, creation, last use, expiry. */
export async function * describeTokens ({ db }: Database): AsyncGenerator<string> {
  for await (const { id, slug } of everyOrganization(db)) {
    for (let page = 1, isLast = false; !isLast; page++) {
      const { rows, total } = await listTokens(db, id, [], { page, per_page: PER_PAGE })
      isLast = page * PER_PAGE >= total
      for (const { id, token_prefix, name, abilities, created_at, last_used_at, expires_at } of rows) {
        yield [
          id, slug, token_prefix, name, abilities.join(','), day(created_at), day(last_used_at), day(expires_at)
        ].join('\t')
      }
    }
  }
}

/** Revokes an API token with all of its values. Throws a StartError when the token does not exist. */
export async function revokeToken ({ db: handle }: Database, id: number): Promise<void> {
  await transaction(handle, async (db) => {
    const none = `There is no token ${id}`
    const organization = await findOrganizationOfToken(db, id) ?? missing(none)
    await lockPlan(db, organization) ?? missing(none)
    // Also finds a token that was changed outside the service. A concurrent revocation records its own event.
    await findSlices(db, organization, id) ?? missing(none)
    await deleteTokens(db, organization, [id])
    await recordEvent(db, operatorOf(organization), eventOf('api-token.delete', id))
  })
}

/** Every organization, ordered by id. */
export async function * everyOrganization (db: Database['db']) {
  for (let after = ''; ;) {
    const some = await listAllOrganizations(db, after)
    yield * some
    const last = some.at(-1)
    if (last === undefined) return
    after = last.id
  }
}

const PER_PAGE = 100
const day = (moment: Date | null) => moment?.toISOString().slice(0, 10) ?? 'never'

function missing (line: string): never {
  throw new StartError(line)
}
