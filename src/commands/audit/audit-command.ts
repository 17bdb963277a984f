import { loadConfig } from '../../config.ts'
import { describeVerified, exportEvents, rotateChainKeys, verifyAudit } from './audit.ts'
import { lineOf } from '../common/open.ts'
import { write } from '../common/output.ts'
import { verbs, withOpened, type Noun } from '../common/noun.ts'
import { FLAG, parse, TEXT, timeOf, UsageError } from '../common/words.ts'

/** `audit` command. */
export const noun: Noun = {
  help: `  audit verify [--organization ID] [--since TIME | --file EXPORT] [--anchors LOG] [--json]
                                          check the audit in the database, or in an export without one
  audit export [--organization ID] [--since TIME]
                                          the audit as lines of JSON, with what its verification needs
  audit rotate-key --organization ID | --all
                                          give what is recorded from now on a key of its own
`,

  run: verbs('audit', {
    verify: async (args, env) => {
      const { organization, since, file, anchors, json } = parse(args, {
        organization: TEXT, since: TEXT, file: TEXT, anchors: TEXT, json: FLAG
      })
      const from = timeOf('--since', since)
      if (from !== undefined && file !== undefined) {
        throw new UsageError('--since goes with the database: an export says from where on it is')
      }
      // Exit status 1 means a broken chain; errors that prevent the verification use 2.
      try {
        const asked = { organization, since: from, file, anchors }
        return await verifyAudit(loadConfig(env), asked, (verified) =>
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
