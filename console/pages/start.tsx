import { useState } from 'preact/hooks'
import { call } from '../api.ts'
import { checkOf, newKey } from '../../src/client/keys.ts'
import { holdKey } from '../held-keys.ts'
import { storeDocument } from '../levels.ts'
import { FileField, valuesIn } from '../import.tsx'
import { partInWords, partsOfProject } from '../part-picker.tsx'
import { can, canSomewhere, rights } from '../rights.ts'
import { go } from '../router.ts'
import { NewKeyString } from '../secrets.tsx'
import { loadPerson, membership, memberships, roleName } from '../session.ts'
import {
  Act, changed, Check, Danger, Empty, Field, Form, Help, List, Load, may, messageOf, Section, Table, Time, To,
  useList, type Fields
} from '../ui.tsx'
import type { Format } from '../values.ts'

export function StartPage ({ organization }: { organization: string }) {
  const chosen = membership.value
  return (
    <>
      <Invitations />
      {chosen === undefined
        ? <Organizations />
        : <><Projects organization={organization} /><Settings organization={organization} name={chosen.name} /></>}
    </>
  )
}

function Invitations () {
  const answer = (operation: 'acceptInvitation' | 'declineInvitation', id: string) => async () => {
    const more = operation === 'acceptInvitation' ? { body: {} } : { dangerous: ['member:delete'] }
    await call(operation, { path: { invitation: id }, ...more })
    await loadPerson()
    changed(operation === 'acceptInvitation' ? 'You are a member now.' : 'The invitation is declined.')
  }
  return (
    <Load from={async () => (await call('listOwnInvitations')).data.data}>
      {(found) => found.length > 0 && (
        <Section title='Invitations to you'>
          <ul class='list'>
            {found.map(({ id, attributes: { organization, role, invited_by, expires_at, ...there } }) => (
              <li key={id}>
                <p>
                  <strong>{organization.name}</strong> invites you as {roleName(role)}
                  {there.place && there.place_role !== null && `, with the role ${roleName(there.place_role)} in ${partInWords(there.place, there.place_names!)}`}
                  {invited_by !== null && `, by ${invited_by}`}, until <Time at={expires_at} />.
                </p>
                <div class='actions'>
                  <Act name='invitation.accept' kind='main' description={organization.name} run={answer('acceptInvitation', id)} />
                  <Act name='invitation.decline' description={organization.name} run={answer('declineInvitation', id)} />
                </div>
              </li>
            ))}
          </ul>
        </Section>
      )}
    </Load>
  )
}

function Organizations () {
  const create = async ({ name = '' }: Fields) => {
    const { data } = await call('createOrganization', { body: { name } })
    await loadPerson()
    go({ organization: data.data.slug })
    changed(`Created the organization ${data.data.name}.`)
  }
  return (
    <section>
      {memberships.value.length === 0 && <Empty>No organization yet. Create one, or ask for an invitation.</Empty>}
      <ul class='list'>
        {memberships.value.map(({ slug, name, role }) => <li key={slug}><To to={{ organization: slug }}>{name}</To> <span class='soft'>{roleName(role ?? '')}</span></li>)}
      </ul>
      <details>
        <summary>Create an organization</summary>
        <Help text='An organization is a company or a customer. Projects, people and tokens belong to one.' />
        <Form name='organization.create' run={create}><Field label='Name' name='name' required /></Form>
      </details>
    </section>
  )
}

/** The projects of the organization; for a person with parts of projects only, those parts. */
function Projects ({ organization }: { organization: string }) {
  const projects = useList(async (page) => canSomewhere(['project:read'])
    ? (await call('listProjects', { path: { organization }, query: { page, per_page: 50 } })).data
    : { data: [], meta: { current_page: 1, last_page: 1 } })
  const listed = new Set(projects.value?.data.map(({ attributes: { slug } }) => slug))
  const parts = can(['project:read'], {})
    ? []
    : rights.value?.projects.filter(({ slug, rights }) =>
      !listed.has(slug) && rights.every(({ restrictions }) => restrictions.length > 0)) ?? []
  return (
    <section>
      <h2 class='hidden'>Projects</h2>
      <List of={projects} empty={may('project.create', {}) ? 'There is no project yet. Create one below: with an .env file you see its names at once.' : parts.length > 0 ? '' : 'You have no access to a project yet. Ask for a role in one.'}>
        {(found) => (
          <Table
            label='Projects' head={['Project', 'Key held by', 'Last change']}
            rows={found.map(({ id, attributes: { slug, name, encryption_type, last_change } }) => [
              id, <To to={{ page: 'matrix', organization, project: slug }}>{name}</To>, encryption_type === 'client' ? 'your people' : 'the server',
              last_change == null ? '' : <><Time at={last_change.created_at} />{last_change.created_by != null && `, ${last_change.created_by.name}`}</>
            ])}
          />
        )}
      </List>
      {parts.length > 0 && projects.value !== undefined && (
        <Table
          label='Parts of projects' head={['Project', 'Your part']}
          rows={parts.map(({ id, slug, name, rights }) => [
            id, <To to={{ page: 'matrix', organization, project: slug }}>{name}</To>,
            partsOfProject({
              restrictions: rights.flatMap(({ restrictions }) => restrictions),
              restriction_names: rights.flatMap(({ restriction_names }) => restriction_names)
            })
          ])}
        />
      )}
      {may('project.create', {}) && (
        <details open={projects.value?.data.length === 0}>
          <summary>Create a project</summary>
          <CreateProject organization={organization} />
        </details>
      )}
    </section>
  )
}

function CreateProject ({ organization }: { organization: string }) {
  const [isClient, setClient] = useState(false)
  const [document, setDocument] = useState<string | undefined>('')
  const create = async ({ name = '', secret_format = 'env', targets = '', environments = '', key_string = '' }: Fields) => {
    if (document === undefined) throw new Error('Correct the escapes of the imported text first.')
    const lines = document === '' ? [] : valuesIn(secret_format as Format, document).notes.warnings.map(({ line }) => line)
    const key = isClient ? await newKey(key_string) : undefined
    const { data: { data: { attributes: { slug: project } } } } = await call('createProject', {
      path: { organization },
      body: { name, secret_format: secret_format as Format, ...(key !== undefined && { storage_mode: 'client', ...checkOf(key) }) }
    })
    if (key !== undefined) holdKey(`${organization}/${project}`, key)
    // A second attempt would create a second project: what fails from here on is completed on the page of the project.
    const problem = await addParts(wordsOf(targets), wordsOf(environments), project).then(() => '', messageOf)
    go({ page: 'matrix', organization, project })
    changed(problem === '' ? `Created the project ${name}.${lines.length === 0 ? '' : ` Some programs read other values from line ${lines.join(', ')} of its text.`}` : `Created the project ${name}, but not all of it. Add the rest on this page. ${problem}`)
  }
  const addParts = async (targets: readonly string[], environments: readonly string[], project: string) => {
    for (const target of targets) {
      const made = await call('createTarget', { path: { organization, project }, body: { name: target } })
      for (const environment of environments) {
        await call('createEnvironment', {
          path: { organization, project, target: made.data.data.attributes.slug },
          body: { name: environment, status: /^(?:live|prod|production)$/i.test(environment) ? 'production' : 'development' }
        })
      }
    }
    if (document) await storeDocument({ organization, project }, document, null, isClient)
  }
  return (
    <Form name='project.create' run={create}>
      <Field label='Name of the project' name='name' required />
      <Field label='Targets' name='targets' hint='Parts that are deployed by themselves, as names with commas, such as: backend, website. You can add them later.' />
      <Field label='Environments of each target' name='environments' hint='Stages of a target, as names with commas, such as: test, live.' />
      <Field
        label='Format of the documents' name='secret_format'
        options={[['env', '.env: lines of NAME=value'], ['json', 'JSON'], ['yaml', 'YAML'], ['text', 'Text without names']]}
      />
      <FileField label='Import (optional): an .env file or another text in this format' change={setDocument} value={document ?? ''} />
      <fieldset>
        <legend>Who holds the key?</legend>
        <Check type='radio' name='custody' value='server' label='The server: it decrypts for people with permission' checked={!isClient} onChange={() => setClient(false)} />
        <Check type='radio' name='custody' value='client' label='Only your people: the server can never read the secrets' checked={isClient} onChange={() => setClient(true)} />
        {isClient && <NewKeyString label='Key string' />}
      </fieldset>
    </Form>
  )
}

const wordsOf = (text: string) => [...new Set(text.split(',').map((word) => word.trim()).filter((word) => word !== ''))]

function Settings ({ organization, name }: { organization: string, name: string }) {
  const remove = async () => {
    await call('deleteOrganization', { path: { organization }, body: { confirmed: true }, dangerous: ['organization:delete'] })
    await loadPerson()
    go({})
    changed(`Deleted the organization ${name}.`)
  }
  if (!may('organization.delete', {})) return null
  return (
    <details>
      <summary>Settings of the organization</summary>
      <Danger name='organization.delete' title={`Delete ${name}?`} run={remove}>
        <p>This deletes all projects, secrets, tokens and memberships of {name}. It cannot be undone.</p>
      </Danger>
    </details>
  )
}
