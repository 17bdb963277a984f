#!/usr/bin/env node
import { readFileSync, realpathSync, writeFileSync } from 'node:fs'
import { fileURLToPath } from 'node:url'
import { parseArgs } from 'node:util'
import { COUPON_PATTERN, CURRENCY_CODES, MOST_AMOUNT } from '../schemas/billing.ts'
import { ORGANIZATION_STATUSES, type OrganizationStatus } from '../schemas/organizations.ts'
import { canonicalAbilities } from '../schemas/scopes.ts'
import { NAME_LENGTH } from '../schemas/shapes.ts'
import { EMAIL_LENGTH, EMAIL_PATTERN, PASSWORD, ROLES, type Role } from '../schemas/users.ts'
import { describeVerified, exportEvents, rotateChainKeys, verifyAudit } from './commands/audit.ts'
import {
  addCoupon, describeCoupons, describeRefunds, exportInvoices, setPrice, settle, stopCoupon
} from './commands/billing.ts'
import { addClient, CLIENT_ID, describeClients, switchClient } from './commands/clients.ts'
import { initialize } from './commands/initialize.ts'
import { lineOf, migrate, open, StartError, type Opened } from './commands/open.ts'
import { addOrganization, describeOrganizations, setOrganization } from './commands/organizations.ts'
import { report, rewrap } from './commands/rewrap.ts'
import { serve } from './commands/serve.ts'
import { addToken, describeTokens as describeEveryToken, revokeToken } from './commands/tokens.ts'
import {
  addUser, describeTokens, describeUsers, mailLink, renewLink, resetSecondFactor, serviceAddress, switchUser,
  type Linked
} from './commands/users.ts'
import { loadConfig, type Config } from './config.ts'
import type { Database } from './db/database.ts'
import { normalizedEmail } from './repositories/users.ts'
import { parseId } from './rules/ids.ts'
import { isRegistrable } from './rules/redirects.ts'
import { canonicalRole } from './rules/roles.ts'

const USAGE = `Usage: strongroom COMMAND

  serve                                   migrate and serve (docs/operations.md has the variables)
  init --organization NAME --email ADDRESS [--password-stdin] [--json]
                                          make the first organization, its owner and a token
  migrate                                 bring the schema up to date
  rewrap                                  put every stored key under the newest master key
  organization add --name NAME [--owner EMAIL] [--plan NAME]
                                          make an organization, for somebody who has an account
  organization list                       id, slug, status, plan and name of every organization
  organization set --id ID [--plan NAME] [--status STATUS] [--require-second-factor yes|no]
                                          change the plan or status of an organization, by its id or slug
  user add --email ADDRESS [--name NAME] [--organization ID --role ROLE] [--json]
                                          make an account and a link that sets its password
  user password --email ADDRESS [--json]  make a new link
  user disable --email ADDRESS            close an account and end its sessions, tokens and links
  user enable --email ADDRESS             open it again
  user reset-second-factor --email ADDRESS
                                          take a lost second factor away and end the sessions
  user tokens --email ADDRESS             every API token that a person made, in all organizations
  user list                               id, address, state and roles of every account
  token add --organization ID --name NAME [--ability SCOPE ...]
                                          make an API token, of everything when no scope is given, and print it once
  token list                              every API token, in all organizations; never its value
  token revoke --id ID                    end an API token at once
  client add --id ID --name NAME --redirect-uri URI [--redirect-uri URI ...]
                                          register an OAuth client
  client disable --id ID                  shut a client out and revoke what it was granted
  client enable --id ID                   let it in again
  client list                             id, state, name and redirect URIs of every client
  audit verify [--organization ID] [--since TIME | --file EXPORT] [--anchors LOG] [--json]
                                          check the audit in the database, or in an export without one
  audit export [--organization ID] [--since TIME]
                                          the audit as lines of JSON, with what its verification needs
  audit rotate-key --organization ID | --all
                                          give what is recorded from now on a key of its own
  coupon add --code CODE [--percent N] [--amount N --currency CODE] [--valid-until TIME] [--redemptions N]
                                          make a coupon; amounts are in minor units
  coupon end --code CODE                  end it, for whoever has it too
  coupon list                             code, what it takes off, redemptions and end of every coupon
  invoice paid --id ID                    note down that a wire transfer came in
  invoice void --id ID                    note down that an invoice asks for nothing any more
  invoice export                          every invoice as a line of JSON, those of deleted organizations too
  refund paid --id ID                     note down that a refund went out
  refund failed --id ID                   note down that it did not: it is left of its charge again
  refund list                             refunds that wait to be paid
  plan price --plan NAME --interval month|year --currency CODE --amount N
                                          set what a plan costs, in minor units; 0 takes the price away
  openapi [--stdout]                      write openapi.yaml and docs/scopes.md from the schemas
`

/** Wrong usage: exit 2. */
class UsageError extends Error {}

const COMMANDS: Record<string, (args: string[]) => Promise<number>> = {
  serve: async (args) => {
    parse(args, {})
    return serve(loadConfig(process.env))
  },

  init: async (args) => {
    const { organization, email, 'password-stdin': passwordStdin, json } = parse(args, {
      organization: { type: 'string' },
      email: { type: 'string' },
      'password-stdin': { type: 'boolean' },
      json: { type: 'boolean' }
    })
    if (!isName(organization)) {
      throw new UsageError(`init needs --organization NAME (at most ${NAME_LENGTH} characters)`)
    }
    if (!isEmail(email)) throw new UsageError('init needs --email ADDRESS')
    const password = passwordStdin ? readFileSync(0, 'utf8').replace(/\r?\n$/, '') : undefined
    if (password !== undefined &&
      ([...password].length < PASSWORD.minCharacters || Buffer.byteLength(password) > PASSWORD.maxBytes)) {
      throw new UsageError(
        `the password has to have ${PASSWORD.minCharacters} characters to ${PASSWORD.maxBytes} bytes`
      )
    }
    const config = loadConfig(process.env)
    const opened = await open(config)
    try {
      const made = await initialize(
        opened, { organization: organization.trim(), email, password, plan: config.defaultPlan }
      )
      if (made === undefined) throw new StartError('The database is not empty: it already has an organization')
      if (json) process.stdout.write(`${JSON.stringify(made)}\n`)
      else {
        process.stdout.write(`Organization ${made.organization.id} (${made.organization.slug})\nOwner ${made.user.email}\n` +
          (made.user.password === undefined ? '' : `Password ${made.user.password}\n`) + `Token ${made.token}\n`)
      }
      return 0
    } finally {
      await opened.database.close()
    }
  },

  migrate: async (args) => {
    parse(args, {})
    await migrate(loadConfig(process.env))
    process.stdout.write('The schema is up to date.\n')
    return 0
  },

  rewrap: async (args) => {
    parse(args, {})
    const opened = await open(loadConfig(process.env))
    try {
      const outcome = await rewrap(opened)
      for (const line of outcome.failures) process.stderr.write(`${line}\n`)
      process.stdout.write(report(outcome, opened.keyring.currentId))
      return outcome.failures.length > 0 || outcome.older.some(({ values }) => values > 0) ? 1 : 0
    } finally {
      await opened.database.close()
    }
  },

  organization: verbs('organization', {
    add: async (args) => {
      const { name, owner, plan } = parse(
        args, { name: { type: 'string' }, owner: { type: 'string' }, plan: { type: 'string' } }
      )
      if (!isName(name)) {
        throw new UsageError(`organization add needs --name NAME (at most ${NAME_LENGTH} characters)`)
      }
      if (owner !== undefined && !isEmail(owner)) throw new UsageError('--owner is an e-mail address')
      const config = loadConfig(process.env)
      const opened = await open(config)
      try {
        const made = await addOrganization(opened, { name: name.trim(), owner, plan: plan ?? config.defaultPlan })
        process.stdout.write(`Organization ${made.id} (${made.slug})\n`)
        return 0
      } finally {
        await opened.database.close()
      }
    },

    list: async (args) => {
      parse(args, {})
      return withDatabase(async (database) => {
        for await (const line of describeOrganizations(database)) process.stdout.write(`${line}\n`)
      })
    },

    set: async (args) => {
      const { id, plan, status, 'require-second-factor': required } = parse(args, {
        id: { type: 'string' },
        plan: { type: 'string' },
        status: { type: 'string' },
        'require-second-factor': { type: 'string' }
      })
      if (!id) throw new UsageError('organization set needs --id ID')
      if (plan === undefined && status === undefined && required === undefined) {
        throw new UsageError('organization set needs --plan, --status or --require-second-factor')
      }
      if (required !== undefined && required !== 'yes' && required !== 'no') {
        throw new UsageError('--require-second-factor is yes or no')
      }
      const require_second_factor = required === undefined ? undefined : required === 'yes'
      if (status !== undefined && !(ORGANIZATION_STATUSES as readonly string[]).includes(status)) {
        throw new UsageError(`--status is one of ${ORGANIZATION_STATUSES.join(', ')}`)
      }
      const { database } = await open(loadConfig(process.env))
      try {
        await setOrganization(
          database, id, { plan, status: status as OrganizationStatus | undefined, require_second_factor }
        )
        process.stdout.write('Changed.\n')
        return 0
      } finally {
        await database.close()
      }
    }
  }),

  user: verbs('user', {
    add: async (args) => {
      const { email, name, organization, role, json } = parse(args, {
        email: { type: 'string' },
        name: { type: 'string' },
        organization: { type: 'string' },
        role: { type: 'string' },
        json: { type: 'boolean' }
      })
      if (!isEmail(email)) throw new UsageError('user add needs --email ADDRESS')
      if (name !== undefined && !isName(name)) {
        throw new UsageError(`--name has at most ${NAME_LENGTH} characters, none of them a control character`)
      }
      const read = role === undefined ? undefined : canonicalRole(role)
      if (read !== undefined && !isRole(read)) throw new UsageError(`--role is one of ${ROLES.join(', ')}`)
      if ((organization === undefined) !== (read === undefined)) {
        throw new UsageError('--organization and --role go together')
      }
      const membership = organization === undefined || read === undefined ? undefined : { organization, role: read }
      const user = { email, name: name?.trim() ?? email.split('@')[0]!.slice(0, NAME_LENGTH), membership }
      return handOver(json, (database, service) => addUser(database, service, user))
    },

    password: async (args) => {
      const { email, json } = parse(args, { email: { type: 'string' }, json: { type: 'boolean' } })
      if (!isEmail(email)) throw new UsageError('user password needs --email ADDRESS')
      return handOver(json, (database, service) => renewLink(database, service, email))
    },

    disable: async (args) => switchAccount('disable', args),
    enable: async (args) => switchAccount('enable', args),

    'reset-second-factor': async (args) => {
      const { email } = parse(args, { email: { type: 'string' } })
      if (!isEmail(email)) throw new UsageError('user reset-second-factor needs --email ADDRESS')
      return withDatabase(async (database) => {
        await resetSecondFactor(database, email)
        process.stdout.write('Changed.\n')
      })
    },

    tokens: async (args) => {
      const { email } = parse(args, { email: { type: 'string' } })
      if (!isEmail(email)) throw new UsageError('user tokens needs --email ADDRESS')
      return withDatabase(async (database) => {
        for (const line of await describeTokens(database, email)) process.stdout.write(`${line}\n`)
      })
    },

    list: async (args) => {
      parse(args, {})
      return withDatabase(async (database) => {
        for await (const line of describeUsers(database)) process.stdout.write(`${line}\n`)
      })
    }
  }),

  token: verbs('token', {
    add: async (args) => {
      const { organization, name, ability: spellings = ['*'] } = parse(args, {
        organization: { type: 'string' }, name: { type: 'string' }, ability: { type: 'string', multiple: true }
      })
      if (!organization) throw new UsageError('token add needs --organization ID')
      if (!isName(name)) throw new UsageError(`token add needs --name NAME (at most ${NAME_LENGTH} characters)`)
      const abilities = [...new Set(spellings.flatMap((spelling) => canonicalAbilities(spelling) ?? (() => {
        throw new UsageError(`--ability is a scope, as secret:read, or *; not ${JSON.stringify(spelling)}`)
      })()))]
      const held = abilities.includes('*') ? ['*' as const] : abilities
      return withDatabase(async (database) => {
        process.stdout.write(`${await addToken(database, { organization, name: name.trim(), abilities: held })}\n`)
      })
    },

    list: async (args) => {
      parse(args, {})
      return withDatabase(async (database) => {
        for await (const line of describeEveryToken(database)) process.stdout.write(`${line}\n`)
      })
    },

    revoke: async (args) => {
      const { id: text } = parse(args, { id: { type: 'string' } })
      const id = parseId(text ?? '')
      if (id === undefined) throw new UsageError('token revoke needs --id ID')
      return withDatabase(async (database) => {
        await revokeToken(database, id)
        process.stdout.write('Revoked.\n')
      })
    }
  }),

  client: verbs('client', {
    add: async (args) => {
      const { id, name, 'redirect-uri': uris = [] } = parse(
        args, { id: { type: 'string' }, name: { type: 'string' }, 'redirect-uri': { type: 'string', multiple: true } }
      )
      if (id === undefined || !CLIENT_ID.test(id)) {
        throw new UsageError(
          'client add needs --id ID: 1 to 64 of a-z, 0-9, ".", "_" and "-", beginning with a letter or digit'
        )
      }
      if (!isName(name)) throw new UsageError(`client add needs --name NAME (at most ${NAME_LENGTH} characters)`)
      if (uris.length === 0) throw new UsageError('client add needs --redirect-uri URI')
      const wrong = uris.find((uri) => !isRegistrable(uri))
      if (wrong !== undefined) {
        throw new UsageError(`${JSON.stringify(wrong)} cannot be a redirect URI: https://…, http:// with 127.0.0.1, [::1] or localhost, or the scheme of an app, as in com.example.app:/callback; ` +
          'without wildcard, fragment or user')
      }
      return withDatabase(async (database) => {
        await addClient(database, { id, name: name.trim(), redirect_uris: [...new Set(uris)] })
        process.stdout.write('Added.\n')
      })
    },

    disable: async (args) => switchApplication('disable', args),
    enable: async (args) => switchApplication('enable', args),

    list: async (args) => {
      parse(args, {})
      return withDatabase(async (database) => {
        for (const line of await describeClients(database)) process.stdout.write(`${line}\n`)
      })
    }
  }),

  audit: verbs('audit', {
    verify: async (args) => {
      const { organization, since, file, anchors, json } = parse(args, {
        organization: { type: 'string' },
        since: { type: 'string' },
        file: { type: 'string' },
        anchors: { type: 'string' },
        json: { type: 'boolean' }
      })
      const from = sinceOf(since)
      if (from !== undefined && file !== undefined) {
        throw new UsageError('--since goes with the database: an export says from where on it is')
      }
      // 1 says that the audit was tampered with, so whatever keeps us from telling is 2.
      try {
        const asked = { organization, since: from, file, anchors }
        return await verifyAudit(loadConfig(process.env), asked, (verified) =>
          write(json ? `${JSON.stringify(verified)}\n` : describeVerified(verified)))
      } catch (error) {
        process.stderr.write(`${lineOf(error)}\n`)
        return 2
      }
    },

    export: async (args) => {
      const { organization, since } = parse(args, { organization: { type: 'string' }, since: { type: 'string' } })
      const from = sinceOf(since)
      return withOpened(async (opened) => {
        for await (const lines of exportEvents(opened, { organization, since: from })) await write(lines)
      })
    },

    'rotate-key': async (args) => {
      const { organization, all } = parse(args, { organization: { type: 'string' }, all: { type: 'boolean' } })
      if ((organization === undefined) === (all !== true)) {
        throw new UsageError('audit rotate-key needs --organization ID, or --all')
      }
      return withOpened(async (opened) => {
        for await (const line of rotateChainKeys(opened, organization)) await write(line)
      })
    }
  }),

  coupon: verbs('coupon', {
    add: async (args) => {
      const given = parse(args, {
        code: { type: 'string' },
        percent: { type: 'string' },
        amount: { type: 'string' },
        currency: { type: 'string' },
        'valid-until': { type: 'string' },
        redemptions: { type: 'string' }
      })
      const percent_off = numberOf('--percent', given.percent, 100)
      const amount_off = numberOf('--amount', given.amount, MOST_AMOUNT)
      if ((percent_off === null) === (amount_off === null)) {
        throw new UsageError('coupon add needs --percent, or --amount with --currency')
      }
      const currency = amount_off === null ? null : currencyOf(given.currency)
      if (amount_off === null && given.currency !== undefined) throw new UsageError('--currency goes with --amount')
      const valid_until = given['valid-until'] === undefined ? null : new Date(given['valid-until'])
      if (valid_until !== null && Number.isNaN(valid_until.getTime())) {
        throw new UsageError('--valid-until is a time, as in 2027-01-31T00:00:00Z')
      }
      const max_redemptions = numberOf('--redemptions', given.redemptions, 1_000_000_000)
      const code = couponOf(given.code)
      return withDatabase(async (database) => {
        await addCoupon(database, { code, percent_off, amount_off, currency, valid_until, max_redemptions })
        process.stdout.write('Added.\n')
      })
    },

    end: async (args) => {
      const code = couponOf(parse(args, { code: { type: 'string' } }).code)
      return withDatabase(async (database) => {
        await stopCoupon(database, code)
        process.stdout.write('Changed.\n')
      })
    },

    list: async (args) => {
      parse(args, {})
      return withDatabase(async (database) => {
        for await (const line of describeCoupons(database)) process.stdout.write(`${line}\n`)
      })
    }
  }),

  invoice: verbs('invoice', {
    paid: async (args) => noteDown('invoice', 'paid', args),
    void: async (args) => noteDown('invoice', 'void', args),

    export: async (args) => {
      parse(args, {})
      return withDatabase(async (database) => {
        for await (const line of exportInvoices(database)) process.stdout.write(`${line}\n`)
      })
    }
  }),

  refund: verbs('refund', {
    paid: async (args) => noteDown('refund', 'paid', args),
    failed: async (args) => noteDown('refund', 'failed', args),

    list: async (args) => {
      parse(args, {})
      return withDatabase(async (database) => {
        for await (const line of describeRefunds(database)) process.stdout.write(`${line}\n`)
      })
    }
  }),

  plan: verbs('plan', {
    price: async (args) => {
      const { plan, interval, currency: code, amount: text } = parse(args, {
        plan: { type: 'string' }, interval: { type: 'string' }, currency: { type: 'string' }, amount: { type: 'string' }
      })
      if (!plan) throw new UsageError('plan price needs --plan NAME')
      if (interval !== 'month' && interval !== 'year') throw new UsageError('--interval is month or year')
      const currency = currencyOf(code)
      if (text === undefined) throw new UsageError('plan price needs --amount N')
      const amount = text === '0' ? null : numberOf('--amount', text, MOST_AMOUNT)
      return withDatabase(async (database) => {
        await setPrice(database, { plan, interval, currency, amount })
        process.stdout.write('Changed.\n')
      })
    }
  }),

  openapi: async (args) => {
    const { stdout } = parse(args, { stdout: { type: 'boolean' } })
    const { renderDocuments } = await import('./commands/openapi.ts')
    const documents = await renderDocuments()
    if (stdout) process.stdout.write(documents['openapi.yaml'])
    else for (const [file, text] of Object.entries(documents)) writeFileSync(file, text)
    return 0
  }
}

/** The commands of one kind of thing, by their second word. */
function verbs (
  thing: string, commands: Record<string, (args: string[]) => Promise<number>>
): (args: string[]) => Promise<number> {
  return async ([verb = '', ...args]) => {
    const command = Object.hasOwn(commands, verb) ? commands[verb] : undefined
    if (command === undefined) throw new UsageError(`${thing} takes: ${Object.keys(commands).join(', ')}`)
    return command(args)
  }
}

// As fast as who reads takes it, so that no more than a piece is in memory.
async function write (text: string): Promise<void> {
  if (!process.stdout.write(text)) await new Promise((resolve) => { process.stdout.once('drain', resolve) })
}

async function withOpened (act: (opened: Opened, config: Config) => Promise<void>): Promise<number> {
  const config = loadConfig(process.env)
  const opened = await open(config)
  try {
    await act(opened, config)
    return 0
  } finally {
    await opened.database.close()
  }
}

const withDatabase = (act: (database: Database, config: Config) => Promise<void>) =>
  withOpened(({ database }, config) => act(database, config))

// The link is printed before anything is mailed: whatever the mail server does, the operator has it.
async function handOver (
  json: boolean | undefined, make: (database: Database, service: string) => Promise<Linked>
): Promise<number> {
  const service = serviceAddress(loadConfig(process.env))
  return withDatabase(async (database, config) => {
    const made = await make(database, service)
    const { user: { id, email }, link } = made
    process.stdout.write(json
      ? `${JSON.stringify({ user: { id: String(id), email }, link })}\n`
      : `User ${id} (${email})\nLink ${link}\n`)
    const mailed = await mailLink(config, made, (line) => process.stderr.write(`${line}\n`))
    if (mailed && !json) process.stdout.write('The link was mailed.\n')
  })
}

async function switchAccount (verb: 'disable' | 'enable', args: string[]): Promise<number> {
  const { email } = parse(args, { email: { type: 'string' } })
  if (!isEmail(email)) throw new UsageError(`user ${verb} needs --email ADDRESS`)
  return withDatabase(async (database) => {
    const ownerless = await switchUser(database, email, verb === 'disable')
    process.stdout.write('Changed.\n')
    for (const slug of ownerless) {
      process.stdout.write(`${slug} has no owner now who can act. Open the account again, or make another owner with: ` +
        `user add --email ADDRESS --organization ${slug} --role owner\n`)
    }
  })
}

async function switchApplication (verb: 'disable' | 'enable', args: string[]): Promise<number> {
  const { id } = parse(args, { id: { type: 'string' } })
  if (!id) throw new UsageError(`client ${verb} needs --id ID`)
  return withDatabase(async (database) => {
    await switchClient(database, id, verb === 'disable')
    process.stdout.write('Changed.\n')
  })
}

async function noteDown<T extends 'invoice' | 'refund'> (
  of: T, as: Parameters<typeof settle<T>>[2], args: string[]
): Promise<number> {
  const { id } = parse(args, { id: { type: 'string' } })
  if (!id) throw new UsageError(`${of} ${String(as)} needs --id ID`)
  return withDatabase(async (database) => {
    process.stdout.write(`${await settle(database, of, as, id.toUpperCase())}\n`)
  })
}

function sinceOf (text: string | undefined): Date | undefined {
  const since = text === undefined ? undefined : new Date(text)
  return since !== undefined && Number.isNaN(since.getTime())
    ? fail('--since is a time as in 2026-03-01T12:00:00Z')
    : since
}

// A whole number from 1 on; null where nothing was given.
function numberOf (option: string, text: string | undefined, most: number): number | null {
  if (text === undefined) return null
  const number = /^\d{1,15}$/.test(text) ? Number(text) : 0
  if (number < 1 || number > most) throw new UsageError(`${option} is a whole number from 1 to ${most}`)
  return number
}

function currencyOf (text: string | undefined): string {
  const code = text?.toUpperCase() ?? ''
  return (CURRENCY_CODES as readonly string[]).includes(code)
    ? code
    : fail('--currency is a code of ISO 4217, as in EUR')
}

function couponOf (text: string | undefined): string {
  return text !== undefined && new RegExp(COUPON_PATTERN).test(text)
    ? text.toUpperCase()
    : fail('--code has 1 to 64 letters, digits, "-" and "_"')
}

function fail (line: string): never {
  throw new UsageError(line)
}

const isRole = (text: string): text is Role => (ROLES as readonly string[]).includes(text)
const isName = (text: string | undefined): text is string =>
  text !== undefined && text.trim() !== '' && text.length <= NAME_LENGTH && !/\p{C}/u.test(text)

// Compatibility forms of a few characters are longer than these, and both are stored.
function isEmail (text: string | undefined): text is string {
  return text !== undefined && EMAIL_PATTERN.test(text) && text.length <= EMAIL_LENGTH &&
    normalizedEmail(text).length <= EMAIL_LENGTH
}

type Options = Record<string, { type: 'string', multiple?: boolean } | { type: 'boolean' }>
function parse<const O extends Options> (args: string[], options: O) {
  try {
    return parseArgs({ args, options, strict: true, allowPositionals: false }).values
  } catch (error) {
    throw new UsageError((error as Error).message)
  }
}

/** Runs a command. Exit status: 0 done, 1 failed, 2 wrong usage; every failure is one line. */
export async function main (argv: string[]): Promise<number> {
  const [name = '', ...args] = argv
  const command = Object.hasOwn(COMMANDS, name) ? COMMANDS[name] : undefined
  if (command === undefined) {
    process.stderr.write(name === '' ? USAGE : `Unknown command ${name}\n${USAGE}`)
    return 2
  }
  try {
    const status = await command(args)
    // A pipe takes 64 KiB at once: whoever ends the process before the rest is taken cuts it off.
    await new Promise((resolve) => { process.stdout.write('', resolve) })
    return status
  } catch (error) {
    if (error instanceof UsageError) {
      process.stderr.write(`${error.message}\n`)
      return 2
    }
    process.stderr.write(`${lineOf(error)}\n`)
    return 1
  }
}

// The installed command is a link to this file.
const [, started] = process.argv
if (started !== undefined && realpathSync(started) === fileURLToPath(import.meta.url)) {
  process.exit(await main(process.argv.slice(2)))
}
