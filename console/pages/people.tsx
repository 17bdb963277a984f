import { useState } from 'preact/hooks'
import { call, firstPages, type Schemas } from '../api.ts'
import { Invitations } from '../invitations.tsx'
import { chosenPart, PartPicker, partsOfProject } from '../part-picker.tsx'
import { accessOf } from '../rights.ts'
import { go } from '../router.ts'
import { scopesOfRoles, wordsOfScopes } from '../scopes.ts'
import { loadPerson, person, PROJECT_ROLE_OPTIONS, ROLE_OPTIONS, roleName } from '../session.ts'
import {
  Act, changed, Danger, Field, Form, Help, InDialog, Later, List, ListSearch, Load, saying, Section, Table, Time,
  To, useList, useLoad, type Fields
} from '../ui.tsx'

type Role = Schemas['Role']

export function PeoplePage ({ organization }: { organization: string }) {
  const [search, setSearch] = useState('')
  const members = useList(async (page) =>
    (await call('listMembers', { path: { organization }, query: { search, page, per_page: 50 } })).data, [search])
  return (
    <>
      <Help text='A role says what a member may do in the whole organization. Teams give roles in single projects.' />
      <Section title='Members'>
        <div class='toolbar'><ListSearch label='Search by name or address' change={setSearch} /></div>
        <List of={members} empty='No member matches.'>
          {(found) => (
            <Table
              label='Members' head={['Name', 'Address', 'Role', 'Member since', 'Change']}
              rows={found.map(({ id, attributes: { name, email, role, joined_at } }) => [
                id, `${name}${id === person.value?.id ? ' (you)' : ''}`, email, roleName(role), <Time at={joined_at} />,
                <Change {...{ organization, id, name }} before={role} />
              ])}
            />
          )}
        </List>
      </Section>
      <Invitations organization={organization} />
      <Section title='Teams'>
        <Help text='A team gives its members a role in projects, if you like only in some targets or environments.' />
        <Later name='team.list'><Teams organization={organization} /></Later>
      </Section>
    </>
  )
}

function Teams ({ organization }: { organization: string }) {
  const path = { organization }
  const teams = useList(async (page) => (await call('listTeams', { path, query: { page, per_page: 50 } })).data)
  const create = async ({ name = '' }: Fields) =>
    saying(call('createTeam', { path, body: { name }, dangerous: ['team:create'] }), `Created the team ${name}.`)
  return (
    <>
      <List of={teams} empty='There is no team yet. Create one to give people a role in single projects.'>
        {(found) => (
          <ul class='list'>
            {found.map(({ id, attributes: { name, member_count, project_count } }) => (
              <li key={id}>
                <p><strong>{name}</strong> <span class='soft'>members: {member_count}, projects: {project_count}</span></p>
                <Later name='team.show' description={name}><Team {...{ organization, id, name }} reload={teams.reload} /></Later>
              </li>
            ))}
          </ul>
        )}
      </List>
      <Form name='team.create' run={create}><Field label='Name of the team' name='name' required /></Form>
    </>
  )
}

function Change ({ organization, id, name, before }: Record<'organization' | 'id' | 'name', string> & { before: Role }) {
  const path = { organization, member: id }
  const change = async ({ role = '' }: Fields) => {
    await call('updateMember', { path, body: { role: role as Role }, dangerous: scopesOfRoles('member:update', before, role) })
    if (id === person.value?.id) await loadPerson()
    changed(`${name} is ${roleName(role)} now.`)
  }
  const remove = async () => {
    await call('removeMember', { path, dangerous: scopesOfRoles('member:delete', before) })
    if (id === person.value?.id) { await loadPerson(); return go({}) }
    changed(`${name} is no member any more.`)
  }
  const tokens = <TokensOf organization={organization} member={id} name={name} />
  return (
    <>
      <InDialog name='member.access' description={name} title={`What ${name} can see`}>
        {() => <Access organization={organization} member={id} name={name} />}
      </InDialog>
      <InDialog name='member.choose' description={name} title={`Another role for ${name}`}>
        {(close) => (
          <Form name='member.role' run={async (fields) => { await change(fields); close() }}>
            <Field label={`Role of ${name}`} name='role' value={before} options={ROLE_OPTIONS} />
            {tokens}
          </Form>
        )}
      </InDialog>
      <Danger name='member.remove' title={`Remove ${name}?`} description={name} run={remove}>
        <p>{name} loses all access to this organization at once. The tokens of {name} end, too.</p>
        {tokens}
      </Danger>
    </>
  )
}

/** The tokens of the organization that a member made: they stay when the member goes. */
function TokensOf ({ organization, member, name }: { organization: string, member: string, name: string }) {
  const query = { owner: 'organization', created_by: `user:${member}`, per_page: 100 } as const
  const tokens = useLoad(async () => (await call('listApiTokens', { path: { organization }, query })).data, [])
  const { data: found = [], meta: { total } = { total: 0 } } = tokens.value ?? {}
  if (total === 0) return null
  return (
    <div class='attention'>
      <p>{name} made {total === 1 ? 'this token' : `these ${total} tokens`} of the organization. {total === 1 ? 'It stays' : 'They stay'} valid, and {name} may have the values: <To to={{ page: 'tokens', organization }}>rotate or revoke them</To>.</p>
      <ul>{found.map(({ id, name }) => <li key={id}>{name}</li>)}</ul>
    </div>
  )
}

const Access = ({ organization, member, name }: { organization: string, member: string, name: string }) => (
  <Load from={() => accessOf(organization, member)}>
    {({ role, scopes, projects }) => (
      <>
        <p>In every project, as {roleName(role)}: {wordsOfScopes(scopes)}.</p>
        {projects.length > 0 && (
          <Table
            label={`Projects of ${name}`} head={['Project', 'Through the team', 'May', 'Where']}
            rows={projects.flatMap((project) => project.rights.map((right, i) => [
              `${project.id} ${i}`, project.name, project.teams.map((team) => `${team.name}, as ${roleName(team.role)}`).join('; '),
              wordsOfScopes(right.scopes), partsOfProject(right)
            ] as const))}
          />
        )}
      </>
    )}
  </Load>
)

function Team ({ organization, id, name, reload }: Record<'organization' | 'id' | 'name', string> & { reload: () => Promise<void> }) {
  const path = { organization, team: id }
  const dangerous = ['team:update']
  const load = async () => {
    const team = (await call('getTeam', { path })).data.data.attributes
    const all = await firstPages(async (page) =>
      (await call('listMembers', { path: { organization }, query: { page, per_page: 100 } })).data)
    return { ...team, others: all.found.filter((member) => team.members.every(({ id }) => id !== member.id)) }
  }
  const setProject = async ({ project = '', role = '', ...fields }: Fields) => {
    if (project === '') throw new Error('Choose a project first.')
    const restriction = chosenPart(fields)
    await saying(call('setTeamProject', {
      path: { ...path, project },
      dangerous,
      body: { role: role as Exclude<Role, 'billing_manager' | 'guest'>, restrictions: Object.keys(restriction).length === 0 ? [] : [restriction] }
    }), `${name} has a role in ${project} now.`)
  }
  const addMember = async ({ member = '' }: Fields) =>
    saying(call('addTeamMember', { path: { ...path, member }, body: {}, dangerous }), 'Added to the team.')
  const removeMember = (member: string, name: string) => async () =>
    saying(call('removeTeamMember', { path: { ...path, member }, dangerous }), `${name} left the team.`)
  const removeProject = (project: string, name: string) => async () =>
    saying(call('removeTeamProject', { path: { ...path, project }, dangerous }), `The team has no role in ${name} any more.`)
  const remove = async () => { await call('deleteTeam', { path }); await reload(); changed(`Deleted the team ${name}.`) }
  return (
    <Load from={load}>
      {(team) => (
        <div class='preview'>
          <h3>Members of {name}</h3>
          <Table
            label={`Members of ${name}`} head={['Name', 'Address', 'Change']} empty='Nobody yet.'
            rows={team.members.map(({ id, name, email }) => [id, name, email, <Act name='team-member.remove' description={name} run={removeMember(id, name)} />])}
          />
          {team.others.length > 0 && (
            <Form name='team-member.add' run={addMember}>
              <Field label={`Member to add to ${name}`} name='member' options={team.others.map(({ id, attributes }) => [id, `${attributes.name}, ${attributes.email}`])} />
            </Form>
          )}
          <h3>Projects of {name}</h3>
          <Table
            label={`Projects of ${name}`} head={['Project', 'Role', 'Where', 'Change']} empty='No project yet.'
            rows={team.projects.map(({ id, slug, name, role, ...parts }) => [
              id, name, roleName(role), partsOfProject(parts), <Act name='team-project.remove' description={name} run={removeProject(slug, name)} />
            ])}
          />
          <Form name='team-project.set' run={setProject}>
            <PartPicker organization={organization} none='Choose one' inherits='always' />
            <Field label={`Role of ${name} in the project`} name='role' value='developer' options={PROJECT_ROLE_OPTIONS} />
            <Field label='Production' name='except_status' options={[['', 'Included'], ['production', 'Without environments in production']]} />
          </Form>
          <Danger name='team.delete' title={`Delete the team ${name}?`} description={name} run={remove}>
            <p>Its members lose the roles that the team gives them.</p>
          </Danger>
        </div>
      )}
    </Load>
  )
}
