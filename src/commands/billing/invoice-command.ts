import { exportInvoices } from './billing.ts'
import { listing, verbs, type Noun } from '../common/noun.ts'
import { noteDown } from './settling.ts'

/** `invoice` command. */
export const noun: Noun = {
  help: `  invoice paid --id ID                    note down that a wire transfer came in
  invoice void --id ID                    note down that an invoice asks for nothing any more
  invoice export                          every invoice with its refunds as JSON, of deleted organizations too
`,

  run: verbs('invoice', {
    paid: async (args, env) => noteDown('invoice', 'paid', args, env),
    void: async (args, env) => noteDown('invoice', 'void', args, env),

    export: listing(exportInvoices)
  })
}
