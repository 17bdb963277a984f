import { readFileSync } from 'node:fs'
import { ulid } from 'ulidx'
import { PASSWORD } from '../../../schemas/users.ts'
import { generatePassword, hashPassword } from '../../crypto/passwords.ts'
import { changeThatCreates } from '../../changes/creation.ts'
import { chooseSlug } from '../../http/routes/slugs.ts'
import { eventOf, operatorOf } from '../../repositories/audit/audit.ts'
import { countOrganizations, lockOrganizations } from '../../repositories/levels/organizations.ts'
import { createUser } from '../../repositories/people/users.ts'
import { foundOrganization } from '../../vault/organizations.ts'
import { command, withOpened, type Noun } from '../common/noun.ts'
import { refuse } from '../common/command-errors.ts'
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
  const { email, organization: name, plan } = first
  try {
    const { written } = await changeThatCreates(database.db, operatorOf(id), {
      async load (db) {
        await lockOrganizations(db)
        if (await countOrganizations(db) > 0) throw new NotEmpty()
        return chooseSlug(db, 'organization', undefined, { name })
      },
      decide: (slug) => ({
        async write (db, lockCounter) {
          const user = await createUser(db, { email, name: email.split('@')[0] ?? email, password_hash }) ??
            refuse(`An account with ${email} already exists`)
          const founded = await foundOrganization(db, keyring, { id, name, slug, plan }, lockCounter, user)
          const { token } = await mintToken(db, id, 'First token', ['*'])
          return { slug, user, token, founded: typeof founded === 'number' ? [] : founded }
        },
        events: ({ founded }) => [...founded, eventOf('organization.create', id)]
      })
    })
    const { slug, user, token } = written
    return {
      organization: { id, slug },
      user: { id: String(user), email, ...(first.password === undefined && { password }) },
      token
    }
  } catch (error) {
    if (error instanceof NotEmpty) return undefined
    throw error
  }
}

/** A concurrent start has created an organization. */
class NotEmpty extends Error {}
