import { NAME_LENGTH } from '../../../schemas/shapes.ts'
import { write } from '../common/output.ts'
import { ROLES, type Role } from '../../../schemas/users.ts'
import { loadConfig } from '../../config.ts'
import type { Database } from '../../db/database.ts'
import { isEmail } from '../../rules/formats/emails.ts'
import { canonicalRole } from '../../rules/roles.ts'
import {
  addUser, describeTokens, describeUsers, mailLink, renewLink, resetSecondFactor, serviceAddress, switchUser,
  type Linked
} from './users.ts'
import { change, listing, verbs, withDatabase, writeLines, type Environment, type Noun } from '../common/noun.ts'
import { FLAG, isName, parse, TEXT, UsageError } from '../common/words.ts'

/** `user` command. */
export const noun: Noun = {
  help: `  user add --email ADDRESS [--name NAME] [--organization ID --role ROLE] [--json]
                                          create an account and a link to set its password
  user password --email ADDRESS [--json]  create a new link to set the password
  user disable --email ADDRESS            disable an account and revoke its sessions, tokens and links
  user enable --email ADDRESS             enable an account again
  user reset-second-factor --email ADDRESS
                                          remove a lost second factor and end all sessions of the user
  user tokens --email ADDRESS             list the API tokens that a user created, in all organizations
  user list                               list every account: id, address, state, roles
`,

  run: verbs('user', {
    add: async (args, env) => {
      const { email, name, organization, role, json } = parse(args, {
        email: TEXT, name: TEXT, organization: TEXT, role: TEXT, json: FLAG
      })
      if (!isEmail(email)) throw new UsageError('user add needs --email ADDRESS')
      if (name !== undefined && !isName(name)) {
        throw new UsageError(`--name must have 1 to ${NAME_LENGTH} characters, without control characters`)
      }
      const read = role === undefined ? undefined : canonicalRole(role)
      if (read !== undefined && !isRole(read)) throw new UsageError(`--role must be one of ${ROLES.join(', ')}`)
      if ((organization === undefined) !== (read === undefined)) {
        throw new UsageError('--organization and --role must be given together')
      }
      const membership = organization === undefined || read === undefined ? undefined : { organization, role: read }
      const user = { email, name: name?.trim() ?? email.split('@')[0]!.slice(0, NAME_LENGTH), membership }
      return handOver(env, json, (database, service) => addUser(database, service, user))
    },

    password: async (args, env) => {
      const { email, json } = parse(args, { email: TEXT, json: FLAG })
      if (!isEmail(email)) throw new UsageError('user password needs --email ADDRESS')
      return handOver(env, json, (database, service) => renewLink(database, service, email))
    },

    disable: async (args, env) => switchAccount('disable', args, env),
    enable: async (args, env) => switchAccount('enable', args, env),

    'reset-second-factor': async (args, env) => {
      const { email } = parse(args, { email: TEXT })
      if (!isEmail(email)) throw new UsageError('user reset-second-factor needs --email ADDRESS')
      return change(env, (database) => resetSecondFactor(database, email))
    },

    tokens: async (args, env) => {
      const { email } = parse(args, { email: TEXT })
      if (!isEmail(email)) throw new UsageError('user tokens needs --email ADDRESS')
      return withDatabase(env, (database) => writeLines(describeTokens(database, email)))
    },

    list: listing(describeUsers)
  })
}

// Prints the link before sending the e-mail, so that the operator has it even if the mail server fails.
async function handOver (
  env: Environment, json: boolean | undefined, make: (database: Database, service: string) => Promise<Linked>
): Promise<number> {
  const service = serviceAddress(loadConfig(env))
  return withDatabase(env, async (database, config) => {
    const made = await make(database, service)
    const { user: { id, email }, link } = made
    await write(json
      ? `${JSON.stringify({ user: { id: String(id), email }, link })}\n`
      : `User ${id} (${email})\nLink ${link}\n`)
    const mailed = await mailLink(config, made, (line) => process.stderr.write(`${line}\n`))
    if (mailed && !json) await write('The link was sent by e-mail.\n')
  })
}

async function switchAccount (verb: 'disable' | 'enable', args: string[], env: Environment): Promise<number> {
  const { email } = parse(args, { email: TEXT })
  if (!isEmail(email)) throw new UsageError(`user ${verb} needs --email ADDRESS`)
  return withDatabase(env, async (database) => {
    const ownerless = await switchUser(database, email, verb === 'disable')
    await write('Changed.\n')
    for (const slug of ownerless) {
      await write(`${slug} has no active owner now. Enable the account again, or add another owner: ` +
        `user add --email ADDRESS --organization ${slug} --role owner\n`)
    }
  })
}

const isRole = (text: string): text is Role => (ROLES as readonly string[]).includes(text)
