import { ulid } from 'ulidx'
import { hashToken, mintApiToken, tokenPrefix } from '../../crypto/bearer.ts'
import { generatePassword, hashPassword } from '../../crypto/passwords.ts'
import { transaction } from '../../db/database.ts'
import { chooseSlug } from '../../http/routes/slugs.ts'
import { eventOf, operatorOf, recordEvent } from '../../repositories/audit/audit.ts'
import { countOrganizations, lockOrganizations } from '../../repositories/levels/organizations.ts'
import { createToken } from '../../repositories/people/tokens.ts'
import { createUser } from '../../repositories/people/users.ts'
import { foundOrganization } from '../../vault/organizations.ts'
import { StartError, type Opened } from '../common/open.ts'

export interface Initialized {
  organization: { id: string, slug: string }
  /** `password` only when it was generated. */
  user: { id: string, email: string, password?: string }
  token: string
}

export interface First { organization: string, email: string, password?: string | undefined, plan: string }

/**
 * Creates the first organization, its owner and a `*` token in one transaction. Returns undefined when the database has
 * an organization, also when a concurrent start creates it first.
 */
export async function initialize ({ database, keyring }: Opened, first: First): Promise<Initialized | undefined> {
  // The common case: avoid the password hash and the table lock.
  if (await countOrganizations(database.db) > 0) return undefined
  const password = first.password ?? generatePassword()
  const password_hash = await hashPassword(password)
  const id = ulid()
  const token = mintApiToken(id)
  const made = await transaction(database.db, async (db) => {
    await lockOrganizations(db)
    if (await countOrganizations(db) > 0) return undefined
    const user = await createUser(
      db, { email: first.email, name: first.email.split('@')[0] ?? first.email, password_hash }
    )
    if (user === undefined) throw new StartError(`An account with ${first.email} already exists`)
    const slug = await chooseSlug(db, 'organization', undefined, { name: first.organization })
    await foundOrganization(db, keyring, { id, name: first.organization, slug, plan: first.plan }, user)
    await createToken(db, {
      organization_id: id,
      name: 'First token',
      token_hash: hashToken(token),
      token_prefix: tokenPrefix(token),
      abilities: ['*'],
      slices: [],
      expires_at: null
    })
    await recordEvent(db, operatorOf(id), eventOf('organization.create', id))
    return { user, slug }
  })
  if (made === undefined) return undefined
  return {
    organization: { id, slug: made.slug },
    user: { id: String(made.user), email: first.email, ...(first.password === undefined && { password }) },
    token
  }
}
