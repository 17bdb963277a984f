#!/usr/bin/env node
import { readFileSync, realpathSync, writeFileSync } from 'node:fs'
import { fileURLToPath } from 'node:url'
import { parseArgs } from 'node:util'
import { ORGANIZATION_STATUSES, type OrganizationStatus } from '../schemas/organizations.ts'
import { initialize } from './commands/initialize.ts'
import { open, openDatabase, StartError } from './commands/open.ts'
import { renderOpenApi } from './commands/openapi.ts'
import { report, rewrap } from './commands/rewrap.ts'
import { serve } from './commands/serve.ts'
import { loadConfig } from './config.ts'
import { DatabaseError, databaseError, DatabaseUnavailable, transaction } from './db/database.ts'
import { operatorOf, recordEvent } from './repositories/audit.ts'
import { findPlan, updateOrganization } from './repositories/organizations.ts'

const USAGE = `Usage: strongroom COMMAND

  serve                                   migrate and serve (see README for the variables)
  init --organization NAME --email ADDRESS [--password-stdin] [--json]
                                          make the first organization, its owner and a token
  migrate                                 bring the schema up to date
  rewrap                                  put every stored key under the newest master key
  organization set --id ID [--plan NAME] [--status STATUS]
                                          change the plan or status of an organization, by its id or slug
  openapi [--stdout]                      write openapi.yaml from the schemas
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
      organization: { type: 'string' }, email: { type: 'string' }, 'password-stdin': { type: 'boolean' }, json: { type: 'boolean' }
    })
    if (!organization?.trim() || organization.length > 255) throw new UsageError('init needs --organization NAME (at most 255 characters)')
    if (!email || email.length > 320 || !/^[^\s@]+@[^\s@]+$/.test(email)) throw new UsageError('init needs --email ADDRESS')
    const password = passwordStdin ? readFileSync(0, 'utf8').replace(/\r?\n$/, '') : undefined
    if (password !== undefined && (password.length < 8 || Buffer.byteLength(password) > 128)) throw new UsageError('the password has to have 8 characters to 128 bytes')
    const config = loadConfig(process.env)
    const opened = await open(config)
    try {
      const made = await initialize(opened, { organization: organization.trim(), email, password, plan: config.defaultPlan })
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
    const database = await openDatabase(loadConfig(process.env))
    try {
      await database.migrate()
      process.stdout.write('The schema is up to date.\n')
      return 0
    } finally {
      await database.close()
    }
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

  organization: async ([verb, ...args]) => {
    if (verb !== 'set') throw new UsageError('organization takes: set')
    const { id, plan, status } = parse(args, { id: { type: 'string' }, plan: { type: 'string' }, status: { type: 'string' } })
    if (!id) throw new UsageError('organization set needs --id ID')
    if (plan === undefined && status === undefined) throw new UsageError('organization set needs --plan or --status')
    if (status !== undefined && !(ORGANIZATION_STATUSES as readonly string[]).includes(status)) throw new UsageError(`--status is one of ${ORGANIZATION_STATUSES.join(', ')}`)
    const { database } = await open(loadConfig(process.env))
    try {
      await transaction(database.db, async (db) => {
        if (plan !== undefined && await findPlan(db, plan) === undefined) throw new StartError(`There is no plan ${plan}`)
        const changed = await updateOrganization(db, id, { plan, status: status as OrganizationStatus | undefined })
        if (changed === undefined) throw new StartError(`There is no organization ${id}`)
        const details = { ...(plan && { plan }), ...(status && { status }) }
        await recordEvent(db, operatorOf(changed), { action: 'organization.update', resource_type: 'organization', resource_id: changed, details })
      })
      process.stdout.write('Changed.\n')
      return 0
    } finally {
      await database.close()
    }
  },

  openapi: async (args) => {
    const { stdout } = parse(args, { stdout: { type: 'boolean' } })
    const yaml = await renderOpenApi()
    if (stdout) process.stdout.write(yaml)
    else writeFileSync('openapi.yaml', yaml)
    return 0
  }
}

type Options = Record<string, { type: 'string' } | { type: 'boolean' }>
function parse<O extends Options> (args: string[], options: O) {
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
    return await command(args)
  } catch (error) {
    if (error instanceof UsageError) {
      process.stderr.write(`${error.message}\n`)
      return 2
    }
    const shown = databaseError(error)
    const what = shown instanceof DatabaseUnavailable || shown instanceof DatabaseError ? 'The database cannot be used: ' : ''
    process.stderr.write(`${what}${shown.message.split('\n', 1)[0]}\n`)
    return 1
  }
}

// The installed command is a link to this file.
const [, started] = process.argv
if (started !== undefined && realpathSync(started) === fileURLToPath(import.meta.url)) process.exit(await main(process.argv.slice(2)))
