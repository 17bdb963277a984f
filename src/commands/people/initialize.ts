import { readFileSync } from 'node:fs'
import { ulid } from 'ulidx'
import { PASSWORD } from '../../../schemas/users.ts'
import { generatePassword, hashPassword } from '../../crypto/passwords.ts'
import { openChange } from '../../db/changes/chain.ts'
import { transaction } from '../../db/database.ts'
import { chooseSlug } from '../../http/routes/slugs.ts'
import { eventOf, operatorOf, recordEvent } from '../../repositories/audit/audit.ts'
import { countOrganizations, lockOrganizations } from '../../repositories/levels/organizations.ts'
import { createUser } from '../../repositories/people/users.ts'
import { foundOrganization } from '../../vault/organizations.ts'
import { command, withOpened, type Noun } from '../common/noun.ts'
import { refuse } from '../common/errors.ts'
import type { Opened } from '../common/open.ts'
import { write } from '../common/stdio.ts'
import { emailOf, fail, FLAG, nameOf, TEXT } from '../common/words.ts'
import { mintToken } from './tokens.ts'

export const noun: Noun = {
  help: `  init --organization NAME --email ADDRESS [--password-stdin] [--json]
                                          create the first organization, its owner and a token
`,

  run: command({ organization: TEXT, email: TEXT, 'password-stdin': FLAG, json: FLAG }, async (given, env) => {
    const organization = nameOf('init needs --organization', given.organization)
    const { json } = given
    const email = emailOf('init needs --email', given.email)
    const password = given['password-stdin'] ? readFileSync(0, 'utf8').replace(/\r?\n$/, '') : undefined
    if (password !== undefined &&
      ([...password].length < PASSWORD.minCharacters || Buffer.byteLength(password) > PASSWORD.maxBytes)) {
      fail(`The password must have at least ${PASSWORD.minCharacters} characters and at most ${PASSWORD.maxBytes} bytes`)
    }
    return withOpened(env, async (opened, { defaultPlan: plan }) => {
      const made = await initialize(opened, { organization, email, password, plan }) ??
        refuse('The database is not empty: it already has an organization')
      const { organization: { id, slug }, user, token } = made
      await write(json
        ? `${JSON.stringify(made)}\n`
        : `Organization ${id} (${slug})\nOwner ${user.email}\n` +
          (user.password === undefined ? '' : `Password ${user.password}\n`) + `Token ${token}\n`)
    }, { creates: true })
  })
}

export interface Initialized {
  organization: { id: string, slug: string }
  /** `password` is set only if it was generated. */
  user: { id: string, email: string, password?: string }
  token: string
}

interface First { organization: string, email: string, password?: string | undefined, plan: string }

/**
 * Creates the first organization, its owner and a `*` token in one transaction. Returns undefined if the database
 * already has an organization, which a concurrent start may have created.
 */
export async function initialize ({ database, keyring }: Opened, first: First): Promise<Initialized | undefined> {
  // Usually an organization exists. Then this check avoids the password hash and the table lock.
  if (await countOrganizations(database.db) > 0) return undefined
  const password = first.password ?? generatePassword()
  const password_hash = await hashPassword(password)
  const id = ulid()
  return transaction(database.db, async (db) => {
    await lockOrganizations(db)
    if (await countOrganizations(db) > 0) return undefined
    const user = await createUser(
      db, { email: first.email, name: first.email.split('@')[0] ?? first.email, password_hash }
    )
    if (user === undefined) refuse(`An account with ${first.email} already exists`)
    const slug = await chooseSlug(db, 'organization', undefined, { name: first.organization })
    const lockCounter = async () => (await openChange(db, { organization_id: id }))!
    const founded = await foundOrganization(
      db, keyring, { id, name: first.organization, slug, plan: first.plan }, lockCounter, user
    )
    const { token } = await mintToken(db, id, 'First token', ['*'])
    if (typeof founded === 'object') for (const { actor, event } of founded) await recordEvent(db, actor, event)
    await recordEvent(db, operatorOf(id), eventOf('organization.create', id))
    return {
      organization: { id, slug },
      user: { id: String(user), email: first.email, ...(first.password === undefined && { password }) },
      token
    }
  })
}
