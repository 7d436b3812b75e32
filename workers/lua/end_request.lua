-- end_request.lua - the one way a request ends, whoever ends it.
-- Needs names.lua, rq_job.lua, session.lua.
-- include rate
-- include key_limits
-- include promises
-- include job_list
local RQ_STATUS = {
  finished = 'finished', failed = 'failed', expired = 'failed', cancelled = 'canceled'
}

-- What the journal holds so far: the text, how many tokens, the last digest.
local function told(id)
  local pieces, digest = {}, nil
  local entries = redis.call('XRANGE', tokens_key(id), '-', '+')
  for i, entry in ipairs(entries) do
    for k = 1, #entry[2], 2 do
      if entry[2][k] == 'text' then pieces[i] = entry[2][k + 1] end
      if entry[2][k] == 'digest' then digest = entry[2][k + 1] end
    end
    pieces[i] = pieces[i] or ''
  end
  return table.concat(pieces), #entries, digest
end

-- Without a choice every end is posted, and the start is not.
local function wanted(events, status)
  if not events or events == '' then return status ~= 'started' end
  return string.find(',' .. events .. ',', ',' .. status .. ',', 1, true)
end

-- One attempt of a webhook, as an RQ job. It stays among those that wait, so that webhook_due.lua
-- finds it again should its RQ job get lost (`rq empty`, Job.cancel, Job.delete).
local WEBHOOK_LOOK_MS = 3600 * 1000
local function queue_attempt(id, number)
  rq_push('wh-' .. id .. '-' .. number, 'webhooks', 'workers.jobs.deliver', id)
  redis.call('ZADD', P .. ':webhooks:due', NOW_MS + WEBHOOK_LOOK_MS, id)
  redis.call('EXPIRE', P .. ':webhooks:due', KEEP_S)
end

-- The first attempt of the webhook, as an RQ job; workers/webhook does the rest. Its body is made
-- from the job's hash (workers/webhook/event.py): both hashes stay until it is delivered or dead.
-- That of the start is one of its own, called ID.started: two may be under way at once.
local function queue_webhook(id, status)
  local target =
    redis.call('HMGET', job_key(id), 'webhook_url', 'webhook_secret_id', 'webhook_events')
  if not target[1] or not wanted(target[3], status) then return RESULT_TTL_S end
  local name = status == 'started' and id .. '.started' or id
  local key = P .. ':webhook:' .. name
  redis.call('HSET', key, 'url', target[1], 'secret_id', target[2] or 'default', 'status', status,
    'state', 'pending', 'attempts', 0, 'failures', 0, 'created_ms', NOW_MS)
  redis.call('EXPIRE', key, KEEP_S)
  queue_attempt(name, 1)
  return KEEP_S
end

-- What its hash says of a request that ends, by name.
local OF_JOB = {
  'sla', 'session_id', 'forked_at', 'pool', 'reason', 'tenant', 'arrival_ms', 'prompt_tokens',
  'output_tokens', 'charged_tokens', 'traceparent', 'api_key', 'key_charged_tokens', 'webhook_url'
}
local function read_job(id)
  local known, job = redis.call('HMGET', job_key(id), unpack(OF_JOB)), {}
  for i, name in ipairs(OF_JOB) do job[name] = known[i] or nil end
  return job
end

-- What the end says of the request: the class that it had in the end, its session, where it ran.
local SAID = { 'sla', 'session_id', 'forked_at', 'pool', 'reason' }
local function tell_of_request(job, flat)
  for _, name in ipairs(SAID) do
    if job[name] then
      flat[#flat + 1] = name
      flat[#flat + 1] = job[name]
    end
  end
end

-- What is to be told as a trace (workers/trace/export.py); bounded.
local function trace(what, id)
  redis.pcall('XADD', P .. ':traces', 'MAXLEN', '~', 10000, '*', 'what', what, 'id', id)
  redis.pcall('EXPIRE', P .. ':traces', RESULT_TTL_S)
end

-- The last failures, for who looks at the node.
local FAILURES_KEPT = 50
local function note_failure(id)
  redis.pcall('LPUSH', P .. ':failures', id)
  redis.pcall('LTRIM', P .. ':failures', 0, FAILURES_KEPT - 1)
  redis.pcall('EXPIRE', P .. ':failures', KEEP_S)
end

-- Its tenant's and its key's rate are set right, the promise of its class counted, its trace and
-- failure noted. job: what its hash says now
local function account_for(id, job)
  if job.traceparent then trace('end', id) end
  if job.status == 'failed' then note_failure(id) end
  local needed = tonumber(job.prompt_tokens or 0) + tonumber(job.output_tokens or 0)
  if job.api_key then leave_key(job.api_key, id, job.key_charged_tokens, needed) end
  if not job.sla then return end
  count_promise(job)
  if job.charged_tokens then
    settle(job.tenant or 'default', tonumber(job.charged_tokens), needed)
  end
end

-- flat: field, value, ... of the end event, status first.
-- text: the whole text, or nil: taken from the journal.
-- The caller has made sure that the request has not ended.
local function end_request(id, flat, text)
  local key, tokens, status = job_key(id), tokens_key(id), flat[2]
  redis.call('ZREM', P .. ':active', id)
  redis.call('ZREM', deadlines_key(), id)
  local job = read_job(id)
  count(P .. ':ends', (job.sla or '?') .. ' ' .. status, 1)
  tell_of_request(job, flat)
  redis.pcall('XADD', tokens, '1-0', unpack(flat))
  local more = { 'ended_ms', NOW_MS }
  if not text then
    local count, digest
    text, count, digest = told(id)
    if digest then more = { 'ended_ms', NOW_MS, 'output_tokens', count - 1, 'digest', digest } end
  end
  for _, part in ipairs(more) do flat[#flat + 1] = part end
  for i = 1, #flat, 2 do job[flat[i]] = flat[i + 1] end
  flat[#flat + 1] = 'text' -- all of it, over the end event's own, which was held back
  flat[#flat + 1] = text
  redis.call('HSET', key, unpack(flat))
  redis.call('HDEL', key, 'cancel', 'then_pool', 'move_reason')
  account_for(id, job)
  local keep_s = job.webhook_url and queue_webhook(id, status) or RESULT_TTL_S
  redis.call('EXPIRE', key, keep_s)
  job_goes(id, keep_s)
  redis.call('EXPIRE', tokens, RESULT_TTL_S)
  rq_end(id, RQ_STATUS[status])
  if job.session_id then leave_session(id) end
end

local function end_as(id, status, reason)
  end_request(id, { 'status', status, 'text', '', 'error', reason, 'code', status })
end

-- A record that a person should look at; bounded.
local function dead_letter(...)
  redis.call('XADD', P .. ':dead', 'MAXLEN', '~', 10000, '*', 'at_ms', NOW_MS, ...)
  redis.call('EXPIRE', P .. ':dead', KEEP_S)
end

-- Its webhook holds the record of a request no longer.
local function keep_result(id)
  if redis.call('EXPIRE', job_key(id), RESULT_TTL_S) == 0 then return end
  job_goes(id, RESULT_TTL_S)
  if redis.call('HEXISTS', job_key(id), 'traceparent') == 1 then trace('webhook', id) end
end

-- A webhook that will not be tried again: its state, and a record from which it can be replayed.
local function webhook_dead(id, reason, code, body)
  local key = P .. ':webhook:' .. id
  local known = redis.call('HMGET', key, 'url', 'secret_id', 'status', 'attempts')
  if not known[1] then return end
  redis.call('HSET', key, 'state', 'dead', 'last_error', reason)
  redis.call('HDEL', key, 'next_at')
  redis.call('ZREM', P .. ':webhooks:due', id)
  redis.call('EXPIRE', key, RESULT_TTL_S)
  keep_result(id)
  local tenant = redis.call('HGET', job_key(id), 'tenant') or ''
  dead_letter('kind', 'webhook', 'id', id, 'tenant', tenant, 'url', known[1],
    'secret_id', known[2], 'status', known[3], 'attempts', known[4],
    'reason', reason, 'code', code, 'body', body)
end
