import { exportInvoices } from '../billing.ts'
import { write } from '../output.ts'
import { verbs, withDatabase, type Noun } from './noun.ts'
import { noteDown } from './settling.ts'
import { parse } from './words.ts'

/** `invoice` and what it takes. */
export const noun: Noun = {
  help: `  invoice paid --id ID                    note down that a wire transfer came in
  invoice void --id ID                    note down that an invoice asks for nothing any more
  invoice export                          every invoice with its refunds as JSON, of deleted organizations too
`,

  run: verbs('invoice', {
    paid: async (args, env) => noteDown('invoice', 'paid', args, env),
    void: async (args, env) => noteDown('invoice', 'void', args, env),

    export: async (args, env) => {
      parse(args, {})
      return withDatabase(env, async (database) => {
        for await (const line of exportInvoices(database)) await write(`${line}\n`)
      })
    }
  })
}
