import { exportInvoices } from './billing.ts'
import { listing, verbs, type Noun } from '../common/noun.ts'
import { noteDown } from './settling.ts'

/** `invoice` command. */
export const noun: Noun = {
  help: `  invoice paid --id ID                    record that a wire transfer was received
  invoice void --id ID                    void an invoice: it is no longer due
  invoice export                          print all invoices and refunds as JSON Lines, also of deleted organizations
`,

  run: verbs('invoice', {
    paid: async (args, env) => noteDown('invoice', 'paid', args, env),
    void: async (args, env) => noteDown('invoice', 'void', args, env),

    export: listing(exportInvoices)
  })
}
