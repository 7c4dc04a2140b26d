-- failed: notes refreshes that brought no pair; their tasks go back into the queue, or leave it for
-- good.
-- DURABILITY none
-- GROWS   no
-- KEYS    1 the shard  2 the view
-- ARGV    3… per account: account, lease, what (retry: note the troubles, again after the delay |
--         hold: again after the delay | dead | lost | stop: note them, out of the queue, the row
--         stays), delay ms, troubles, spare (keep | drop | try: one that is there goes next, at
--         once), the event to be told of ("": none), until when it goes before all others, unix ms
--         (0: it does not; while its refresh token may be sent again after a request of unknown
--         outcome, which only that can save)
-- RETURNS per account: 1, or 0 when the lease is not current (nothing is noted then, but an intent
--         under it is closed)
open()
redis.call('HDEL', INTENTS, '') -- a removal first: a full store lets the script go on
local REPLAY = 30 -- a priority before WANTED
local WHATS, SPARE =
  { retry = true, hold = true, dead = true, lost = true, stop = true },
  { keep = true, drop = true, try = true }
local items = {}
for i = 3, #ARGV, 8 do
  if not WHATS[ARGV[i + 2]] then
    refuse('BADARG what becomes of ' .. ARGV[i] .. ': ' .. tostring(ARGV[i + 2]))
  end
  if not SPARE[ARGV[i + 5]] then
    refuse('BADARG what becomes of the spare of ' .. ARGV[i] .. ': ' .. tostring(ARGV[i + 5]))
  end
  items[#items + 1] = {
    ARGV[i],
    int(i + 1, 'lease', 0, LEASE_MAX),
    ARGV[i + 2],
    int(i + 3, 'delay ms', 0, NEVER),
    ARGV[i + 4],
    ARGV[i + 5],
    ARGV[i + 6],
    int(i + 7, 'until ms', 0, NEVER),
  }
end
local reply = {}

-- An intent with that lease is over; another's stays.
local function close_intent(account, lease)
  local raw = redis.call('HGET', INTENTS, account)
  if raw and (#raw < INTENT or select(6, struct.unpack('>I4I4I6I6c8I8', raw)) == lease) then
    redis.call('HDEL', INTENTS, account)
  end
end

for i = 1, #items do
  local account, lease, what, delay_ms, troubles, spare, event, replay_until = unpack(items[i])
  close_intent(account, lease)
  local r = current_lease(account, lease)
  local t = r and task_get(account)
  if not t then
    reply[i] = 0
  else
    if spare == 'drop' then
      redis.call('HDEL', SPARES, account)
    elseif spare == 'try' then
      local kept = redis.call('HGET', SPARES, account)
      local row = kept and redis.call('HGET', ACCOUNTS, account)
      local s, h = row and row_head(kept), row and row_head(row)
      -- The one before: its time is over.
      if s and h and s.grant == h.grant and s.generation + 1 == h.generation then
        redis.call('HDEL', SPARES, account)
      elseif s then
        what, delay_ms, event = 'retry', 0, ''
      end
    end
    if what ~= 'hold' then redis.call('HSET', TROUBLES, account, troubles) end
    if what == 'dead' or what == 'lost' or what == 'stop' then
      if what == 'lost' then redis.call('SADD', key('account_lost'), account) end
      if what == 'stop' then redis.call('SADD', key('account_stopped'), account) end
      redis.call('ZREM', FAILING, account)
      redis.call('SREM', key('account_told'), account)
      drop_task(account)
      redis.call('ZADD', DEAD, text(now), account)
      count(what == 'stop' and 'accounts stopped' or 'accounts died')
    else
      if what == 'hold' and delay_ms > 0 then
        redis.call('ZREMRANGEBYSCORE', key('account_held'), '-inf', text(now))
        redis.call('ZADD', key('account_held'), text(now + delay_ms), account)
      end
      if what == 'retry' then redis.call('ZADD', FAILING, text(now + delay_ms), account) end
      if replay_until > 0 then
        t.priority, t.deadline = REPLAY, replay_until
      else
        if t.priority == REPLAY then
          local row = redis.call('HGET', ACCOUNTS, account)
          local head = row and row_head(row)
          t.deadline = head and head.expires > 0 and head.expires or now + S.urgent_ms
        end
        t.priority = NORMAL -- whoever wanted it sooner has had the try
        -- Of those that are late the first to expire goes first: whoever fails again and again
        -- would be it for ever, and those that were not asked yet would never be.
        t.deadline = math.max(t.deadline, now + delay_ms)
      end
      task_put(account, t)
      end_lease(account, t, r, 'release', delay_ms)
    end
    if event ~= '' and post_event(event, account, troubles) and event == 'account.failing' then
      redis.call('SADD', key('account_told'), account)
    end
    reply[i] = 1
  end
end
return finish(reply)
