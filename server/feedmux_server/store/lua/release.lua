-- ARGV: epoch, nonce, delivered ('' if nothing was delivered under the lease)
local stored = read('epoch', 'nonce')
if stored[1] ~= ARGV[1] or stored[2] ~= ARGV[2] then return {'NOT_OURS'} end
redis.call('HSET', key, 'nonce', '', 'owner', '', 'lease_until_ms', '0', 'fence_cause', 'LEASE',
  'used_ms', int(now_ms()))
if ARGV[3] ~= '' then redis.call('HSET', key, 'delivered', ARGV[3]) end
return {'OK'}
