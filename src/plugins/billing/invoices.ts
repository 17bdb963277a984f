import { Invoice, InvoiceFile, InvoiceItem, InvoiceParams, LatestInvoices } from '../../../schemas/billing.ts'
import { OrganizationParams } from '../../../schemas/organizations.ts'
import { ListQuery } from '../../../schemas/shapes.ts'
import { INVOICE_POLICY, renderInvoice } from '../../billing/invoice-page.ts'
import { principalOf } from '../../http/routes/actor.ts'
import type { Domain } from '../../http/routes/types.ts'
import { findInvoice, listInvoices, type InvoiceRow } from '../../repositories/billing/invoices.ts'
import { invoiceNumber } from '../../rules/billing.ts'
import { fail } from '../../rules/errors.ts'
import { answerPage, pageMeta } from '../../rules/pagination.ts'

const LATEST = { page: 1, per_page: 50 }

export const invoices: Domain = async (app) => {
  app.get('/organizations/:organization/billing/invoices', {
    config: { access: 'billing:read', at: 'organization', whenInactive: true },
    schema: {
      operationId: 'listInvoices',
      tags: ['billing'],
      summary: 'List invoices, newest first',
      params: OrganizationParams,
      querystring: ListQuery,
      response: { 200: InvoiceItem.list }
    },
    handler: async (request) => answerPage(request.query, toItem, (page) =>
      listInvoices(app.pages, principalOf(request).organization.id, page))
  })

  app.get('/organizations/:organization/invoices', {
    config: { access: 'billing:read', at: 'organization', whenInactive: true },
    schema: {
      operationId: 'listLatestInvoices',
      tags: ['billing'],
      summary: 'List the latest 50 invoices',
      params: OrganizationParams,
      response: { 200: LatestInvoices }
    },
    handler: async (request) => {
      const { rows, total } = await listInvoices(app.pages, principalOf(request).organization.id, LATEST)
      return { data: rows.map(toItem), meta: pageMeta(LATEST, total, rows.length) }
    }
  })

  app.get('/organizations/:organization/billing/invoices/:invoice', {
    config: { access: 'billing:read', at: 'organization', whenInactive: true },
    schema: {
      operationId: 'getInvoice',
      tags: ['billing'],
      summary: 'Get an invoice with its lines',
      params: InvoiceParams,
      response: { 200: Invoice.one }
    },
    handler: async (request) => {
      const invoice = await findInvoice(
        app.reads, principalOf(request).organization.id, request.params.invoice
      ) ?? fail('not_found')
      const { lines, seller, buyer, reference, note } = invoice
      const { attributes, ...item } = toItem(invoice)
      return { data: { ...item, attributes: { ...attributes, lines, seller, buyer, reference, note } } }
    }
  })

  app.get('/organizations/:organization/billing/invoices/:invoice/download', {
    config: { access: 'billing:read', at: 'organization', limitOfEffect: 'invoice_files', whenInactive: true },
    schema: {
      operationId: 'downloadInvoice',
      tags: ['billing'],
      summary: 'Download an invoice as a printable HTML page',
      params: InvoiceParams,
      response: { 200: InvoiceFile }
    },
    handler: async (request, reply) => {
      const invoice = await findInvoice(
        app.reads, principalOf(request).organization.id, request.params.invoice
      ) ?? fail('not_found')
      const number = invoiceNumber(invoice.organization_id, invoice.number)
      await app.countEffect(request, reply)
      return reply.type('text/html; charset=utf-8').headers({
        'content-disposition': `attachment; filename="invoice-${number}.html"`,
        'content-security-policy': `${INVOICE_POLICY}; frame-ancestors 'none'`
      }).send(renderInvoice({ ...invoice, number }, app.invoicing.paymentDetails))
    }
  })
}

function toItem (row: InvoiceRow) {
  const {
    organization_id, id, number, status, currency, subtotal, discount, credit, total, issued_at, due_at, paid_at,
    charge_id, refunded
  } = row
  return {
    type: 'invoices' as const,
    id,
    attributes: {
      number: invoiceNumber(organization_id, number),
      status,
      currency,
      subtotal,
      discount,
      credit,
      total,
      issued_at,
      due_at,
      paid_at,
      charge_id,
      refunded
    }
  }
}
