import { canonicalAbilities, SCOPE_NAMES, type Ability } from '../../../schemas/scopes.ts'
import type { ApiToken } from '../../../schemas/tokens.ts'
import { mintApiToken, storedToken } from '../../crypto/bearer.ts'
import { change } from '../../changes/change.ts'
import type { Database, Db } from '../../db/database.ts'
import { eventOf, operatorOf } from '../../repositories/audit/audit.ts'
import { findOrganization, listAllOrganizations } from '../../repositories/levels/organizations.ts'
import {
  createToken, deleteTokens, findOrganizationOfToken, findSlices, listTokens, findReachedTokenLimit,
  type OwnToken
} from '../../repositories/people/tokens.ts'
import { mustBeOneOf } from '../../rules/formats/phrases.ts'
import { parseId } from '../../rules/formats/ids.ts'
import { deleteUngiven } from '../../vault/memberships.ts'
import { changeOn, command, listing, verbs, type Noun } from '../common/noun.ts'
import { refuse } from '../common/command-errors.ts'
import { allRows, rowOf } from '../common/stdio.ts'
import { fail, nameOf, TEXT, TEXTS } from '../common/words.ts'

export const noun: Noun = {
  help: `  token add --organization ID --name NAME [--ability SCOPE ...]
                                          create an API token and print it once; without a scope, it has all scopes
  token list                              list the API tokens of all organizations, without their values
  token revoke --id ID                    revoke an API token immediately
`,

  run: verbs('token', {
    add: command({ organization: TEXT, name: TEXT, ability: TEXTS }, async (given, env) => {
      const { organization, ability: spellings = ['*'] } = given
      if (!organization) fail('token add needs --organization ID')
      const name = nameOf('token add needs --name', given.name)
      const abilities = [...new Set(spellings.flatMap((spelling) => canonicalAbilities(spelling) ??
        fail(`--ability ${mustBeOneOf(['*', ...SCOPE_NAMES], spelling)}`)))]
      const held = abilities.includes('*') ? ['*' as const] : abilities
      return changeOn(env, (database) => addToken(database, { organization, name, abilities: held }))
    }),

    list: listing(describeTokens),

    revoke: command({ id: TEXT }, async ({ id: text = '' }, env) => {
      const id = parseId(text) ?? fail('token revoke needs --id ID')
      return changeOn(env, (database) => revokeToken(database, id), 'Revoked.')
    })
  })
}

/** Creates an API token without an owner for an organization (id or slug). Returns the value of the token. */
export async function addToken (
  { db: handle }: Database, { organization, name, abilities }: {
    organization: string
    name: string
    abilities: Ability[]
  }
): Promise<string> {
  const none = `There is no organization ${organization}`
  const { id: organizationId } = await findOrganization(handle, organization) ?? refuse(none)
  const { written: { token } } = await change(handle, operatorOf(organizationId), {
    async load (db, { is_closed }) {
      if (is_closed) refuse(none)
      return findReachedTokenLimit(db, organizationId, null)
    },
    decide (limit) {
      if (limit !== undefined) refuse(`The organization has reached its limit of ${limit} tokens: revoke one first`)
      return {
        write: async (db) => mintToken(db, organizationId, name, abilities),
        events: ({ id }) => [eventOf('api-token.create', id, { abilities: abilities.join(' ') })]
      }
    }
  })
  return token
}

/** Creates a token without owner, restrictions or expiry. The caller has locked or created the organization. */
export async function mintToken (
  db: Db, organization_id: string, name: string, abilities: Ability[]
): Promise<{ id: string, token: string }> {
  const token = mintApiToken(organization_id)
  const { id } = await createToken(db, {
    organization_id,
    name,
    ...storedToken(token),
    abilities,
    slices: [],
    expires_at: null
  })
  return { id, token }
}

async function * describeTokens ({ db }: Database): AsyncGenerator<string> {
  for await (const { id, slug } of everyOrganization(db)) {
    for (let page = 1, isLast = false; !isLast; page++) {
      const { rows, total } = await listTokens(db, id, [], {}, { page, per_page: PER_PAGE })
      isLast = page * PER_PAGE >= total
      yield * rows.map((token) => lineOfToken(slug, token))
    }
  }
}

/** An API token as one line: id, organization, prefix and suffix, name, abilities, creation, last use, expiry. */
export function lineOfToken (
  slug: string, token: Pick<OwnToken, Exclude<keyof OwnToken & keyof ApiToken, 'id'>> & { id: string | number }
): string {
  const days = [token.created_at, token.last_used_at, token.expires_at].map((moment) =>
    moment?.toISOString().slice(0, 10) ?? 'never')
  return rowOf(token.id, slug, `${token.token_prefix}…${token.token_suffix}`, token.name, token.abilities.join(','), ...days)
}

/** Revokes all values of an API token. Throws a StartError when the token does not exist. */
export async function revokeToken ({ db: handle }: Database, id: number): Promise<void> {
  const none = `There is no token ${id}`
  const organization = await findOrganizationOfToken(handle, id) ?? refuse(none)
  const actor = operatorOf(organization)
  await change(handle, actor, {
    // Finds the token even if its MAC does not verify. If the token was just revoked, records no second event.
    load: async (db, { is_closed }) =>
      (is_closed ? undefined : await findSlices(db, organization, id)) ?? refuse(none),
    decide: () => ({
      async write (db) {
        await deleteTokens(db, organization, [id])
        return deleteUngiven(db, organization)
      },
      events: (withdrawn) => [{ actor, event: eventOf('api-token.delete', id) }, ...withdrawn]
    })
  })
}

/** Every organization, ordered by id. */
export const everyOrganization = (db: Db) =>
  allRows((after: string) => listAllOrganizations(db, after), '', ({ id }) => id)

const PER_PAGE = 100
