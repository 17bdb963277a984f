import { loadConfig } from '../../config.ts'
import { describeVerified, exportEvents, rotateChainKeys, verifyAudit } from './audit.ts'
import { lineOf } from '../common/open.ts'
import { write } from '../common/output.ts'
import { verbs, withOpened, type Noun } from '../common/noun.ts'
import { FLAG, parse, TEXT, timeOf, UsageError } from '../common/words.ts'

/** `audit` command. */
export const noun: Noun = {
  help: `  audit verify [--organization ID] [--since TIME | --file EXPORT] [--anchors LOG] [--json]
                                          verify the audit log in the database, or in an export without a database
  audit export [--organization ID] [--since TIME]
                                          print the audit log as JSON Lines that can be verified offline
  audit rotate-key --organization ID | --all
                                          use a new chain key for later events
`,

  run: verbs('audit', {
    verify: async (args, env) => {
      const { organization, since, file, anchors, json } = parse(args, {
        organization: TEXT, since: TEXT, file: TEXT, anchors: TEXT, json: FLAG
      })
      const from = timeOf('--since', since)
      if (from !== undefined && file !== undefined) {
        throw new UsageError('--since cannot be combined with --file: an export states its own start')
      }
      // Exit status 1 means a broken chain; errors that prevent the verification use 2.
      try {
        const filter = { organization, since: from, file, anchors }
        return await verifyAudit(loadConfig(env), filter, (verified) =>
          write(json ? `${JSON.stringify(verified)}\n` : describeVerified(verified)))
      } catch (error) {
        process.stderr.write(`${lineOf(error)}\n`)
        return 2
      }
    },

    export: async (args, env) => {
      const { organization, since } = parse(args, { organization: TEXT, since: TEXT })
      const from = timeOf('--since', since)
      return withOpened(env, async (opened) => {
        for await (const lines of exportEvents(opened, { organization, since: from })) await write(lines)
      })
    },

    'rotate-key': async (args, env) => {
      const { organization, all } = parse(args, { organization: TEXT, all: FLAG })
      if ((organization === undefined) === (all !== true)) {
        throw new UsageError('audit rotate-key needs --organization ID, or --all')
      }
      let status = 0
      await withOpened(env, async (opened) => {
        for await (const { line, isDone } of rotateChainKeys(opened, organization)) {
          if (isDone) await write(line)
          else {
            status = 1
            process.stderr.write(line)
          }
        }
      })
      return status
    }
  })
}
